//! An application in this process, on a database of its own.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use precis::app::{Application, StopHandle};
use precis::config::Settings;
use tokio::task::JoinHandle;

use super::backend::{Backend, TestDatabase};
use super::http::Http;
use super::model::ScriptedModel;

pub struct TestApp {
    pub database: Arc<TestDatabase>,
    /// Where the metrics are, if they have an address of their own.
    pub metrics_address: Option<SocketAddr>,
    http: Http,
    variables: Vec<(String, String)>,
    stop: StopHandle,
    task: Option<JoinHandle<()>>,
}

impl TestApp {
    pub async fn spawn(backend: Backend) -> Self {
        Self::with(backend, &[]).await
    }

    /// An application with these `PRECIS_*` variables over those of the tests.
    pub async fn with(backend: Backend, variables: &[(&str, &str)]) -> Self {
        let database = Arc::new(TestDatabase::create(backend).await);
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Self::on(database, variables).await
    }

    /// An application whose summaries come from this model.
    pub async fn with_model(
        backend: Backend,
        model: &ScriptedModel,
        variables: &[(&str, &str)],
    ) -> Self {
        let mut all = model.variables();
        all.extend(
            variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        Self::on(Arc::new(TestDatabase::create(backend).await), all).await
    }

    /// A second application of the same settings on the same database.
    pub async fn spawn_second(&self) -> Self {
        Self::on(Arc::clone(&self.database), self.variables.clone()).await
    }

    pub async fn on(database: Arc<TestDatabase>, variables: Vec<(String, String)>) -> Self {
        super::install_crypto();
        let mut all = base_variables(&database.url);
        // Later ones win, so that a test can override what all tests share.
        all.retain(|(name, _)| !variables.iter().any(|(other, _)| other == name));
        all.extend(variables.iter().cloned());
        let settings = Settings::from_vars(all).expect("the settings of a test are valid");
        let application = Application::build(settings)
            .await
            .expect("the application starts on a fresh database");
        let http = Http::new(application.address());
        let metrics_address = application.metrics_address();
        let stop = application.stop_handle();
        let task = tokio::spawn(async move {
            application
                .run()
                .await
                .expect("the application ends without an error");
        });
        Self {
            database,
            metrics_address,
            http,
            variables,
            stop,
            task: Some(task),
        }
    }

    pub fn http(&self) -> &Http {
        &self.http
    }

    /// Asks for a graceful stop; does not wait for it.
    pub fn stop(&self) {
        self.stop.stop();
    }

    /// Waits until `run` has returned after [`TestApp::stop`].
    pub async fn ended(&mut self) {
        let task = self.task.take().expect("an application ends once");
        task.await.expect("the application does not panic");
    }
}

impl Deref for TestApp {
    type Target = Http;

    fn deref(&self) -> &Http {
        &self.http
    }
}

/// Enough for a server to hear that it shall stop; it need not have stopped.
const HEARD: Duration = Duration::from_millis(20);

impl Drop for TestApp {
    fn drop(&mut self) {
        self.stop.stop();
        let Some(mut task) = self.task.take() else {
            return;
        };
        // A server that is cut off before it has heard of the stop would keep its threads, its
        // socket and its database connections until the last test has ended.
        tokio::task::block_in_place(|| {
            let hearing = async { tokio::time::timeout(HEARD, &mut task).await.ok() };
            tokio::runtime::Handle::current().block_on(hearing);
        });
        task.abort();
    }
}

/// What every service of the tests is told, in this process or in another.
pub fn base_variables(database_url: &str) -> Vec<(String, String)> {
    [
        ("PRECIS_LISTEN", "127.0.0.1:0"),
        ("PRECIS_DATABASE_URL", database_url),
        ("PRECIS_DATABASE__MAX_CONNECTIONS", "5"),
        ("PRECIS_LOG", "error"),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}
