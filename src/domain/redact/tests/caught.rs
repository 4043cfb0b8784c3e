//! What must go.

use super::super::redact;
use super::{block, body, marks};

/// Checks that `{}` in a text is replaced by the placeholder of a kind, and nothing else is.
fn check(text: &str, secret: &str, kind: &str) {
    let expected = text.replace("{}", &format!("[redacted: {kind}]"));
    let given = text.replace("{}", secret);
    let once = redact(&given);
    assert_eq!(once, expected, "from {given:?}");
    assert_eq!(redact(&once), once, "twice, from {given:?}");
}

#[test]
fn keys_of_providers() {
    for (prefix, length, kind) in [
        ("sk-", 48, "access key"),
        ("sk-proj-", 64, "access key"),
        ("sk-ant-api03-", 90, "access key"),
        ("ghp_", 36, "token"),
        ("gho_", 36, "token"),
        ("ghs_", 36, "token"),
        ("github_pat_", 60, "token"),
        ("glpat-", 20, "token"),
        ("xoxb-123456789012-", 24, "token"),
        ("xoxp-123456789012-", 24, "token"),
        ("AIza", 35, "access key"),
        ("ya29.", 60, "token"),
        ("npm_", 36, "token"),
        ("pypi-", 80, "token"),
        ("hf_", 34, "token"),
        ("rk_live_", 24, "access key"),
        ("sk_live_", 24, "access key"),
        ("whsec_", 32, "token"),
    ] {
        let secret = format!("{prefix}{}", body(length));
        for text in [
            "{}",
            "we used {} for it.",
            "say \"{}\"",
            "{\\\"k\\\":\\\"{}\\\"}",
            "one\\n{}\\ntwo",
            "密钥{}，然后",
            "https://x.test/?q={}&b=1",
            "({})",
            "\u{1b}[31m{}\u{1b}[0m",
        ] {
            check(text, &secret, kind);
        }
    }
    let parts = format!("SG.{}.{}", body(22), body(43));
    check("mail: {}.", &parts, "access key");
    check(
        "mailgun {} here",
        &format!("key-{}", "0a1b2c3d".repeat(4)),
        "access key",
    );
}

#[test]
fn keys_of_aws() {
    let id = format!("AKIA{}", "INVENTEDINVENTED");
    let session = format!("ASIA{}", "INVENTED12345678");
    let secret = "In/ventedSecretKeyOf+Forty1CharactersABC";
    assert_eq!(secret.len(), 40);
    check("the id is {}.", &id, "access key");
    check("export AWS_ACCESS_KEY_ID={}", &session, "access key");
    check("aws_secret_access_key = {}", secret, "access key");
    check("AWS_SECRET_ACCESS_KEY={}\\n", secret, "access key");
    check("{\"SecretAccessKey\": \"{}\"}", secret, "access key");
    let both = redact(&format!("{id},{secret}\n")).into_owned();
    assert_eq!(both, "[redacted: access key],[redacted: access key]\n");
}

#[test]
fn headers() {
    let plain = "invented-word";
    for text in [
        "Authorization: Bearer {}",
        "curl -H 'Authorization: Bearer {}' https://x.test",
        "curl -H \"authorization: bearer {}\" https://x.test",
        "{\"Authorization\": \"Bearer {}\"}",
        "{\\\"cmd\\\":\\\"curl -H \\\\\\\"Authorization: Bearer {}\\\\\\\" x\\\"}",
        "headers['Authorization'] = 'Bearer {}'",
        "Proxy-Authorization: Bearer {}\r\n",
    ] {
        check(text, plain, "bearer token");
        check(text, &body(40), "bearer token");
    }
    check("it sent Bearer {} there", &body(20), "bearer token");
    check(
        "Authorization: Basic {}",
        "aW52ZW50ZWQ6d29yZA==",
        "credentials",
    );
    check(
        "with Basic {} it works",
        "aW52ZW50ZWQ6d29yZA==",
        "credentials",
    );
    check("X-Api-Key: {}", "invented-word-1", "access key");
    check("-H 'X-Auth-Token: {}'", "inventedword", "token");
    check(
        "Set-Cookie: sid={}; Path=/; HttpOnly; Max-Age=3600",
        &body(20),
        "cookie",
    );
    check("Cookie: sid={}; t={}\r\nHost: x", &body(20), "cookie");
    check("{\"Cookie\":\"sid={}; t={}\"}", &body(20), "cookie");
    check("curl --cookie 'sid={}' x", &body(20), "cookie");
}

#[test]
fn web_tokens() {
    let token = format!("eyJ{}.eyJ{}.{}", body(30), body(60), body(43));
    check("it is {}.", &token, "token");
    check("{\\\"jwt\\\":\\\"{}\\\"}", &token, "token");
    let cut = format!("eyJ{}.eyJ{}", body(30), body(60));
    check("it is {}", &cut, "token");
}

#[test]
fn passwords_in_addresses() {
    for secret in ["word1", "p%40ss%2Fword", "p@ss", "pa/ss", "pa#s?s", "1234"] {
        for text in [
            "https://user:{}@host.test/path",
            "postgres://user:{}@db:5432/name?sslmode=require",
            "mongodb+srv://user:{}@cluster.test",
            "amqp://user:{}@h:5672/%2f and more",
            "redis://:{}@cache:6379/0",
            "DATABASE_URL=postgresql://u:{}@h/d",
            "{\\\"url\\\":\\\"mysql://u:{}@h/d\\\"}",
            "地址是redis://u:{}@h。",
        ] {
            check(text, secret, "password");
        }
    }
    check(
        "{\"u\":\"https:\\/\\/user:{}@host\\/x\"}",
        "word1",
        "password",
    );
    check("cut postgres://user:{}", "invent", "password");
    check("redis://u:{}@h,redis://u:{}@i", "word1", "password");
}

#[test]
fn private_keys() {
    for label in [
        "PRIVATE KEY",
        "RSA PRIVATE KEY",
        "OPENSSH PRIVATE KEY",
        "PGP PRIVATE KEY BLOCK",
    ] {
        let (begin, end) = marks(label);
        for line_end in [
            "\n",
            "\\n",
            "\\\\n",
            "\r\n",
            "\n    ",
            "\\n\" +\n  \"",
            "\n+",
            "\n> ",
            " ",
        ] {
            let lines = block(3, line_end);
            let whole = format!("{begin}{line_end}{lines}{line_end}Abc={line_end}{end}");
            check("before\n{}\nafter", &whole, "private key");
            check(
                "{\"private_key\": \"{}\\n\", \"a\": 1}",
                &whole,
                "private key",
            );
            check(
                "before {}",
                &format!("{begin}{line_end}{lines}"),
                "private key",
            );
            check(
                "before {}",
                &format!("{begin}{line_end}{lines}{line_end}Ab0"),
                "private key",
            );
            check(
                "{}\n\n[cut off] and then we went on",
                &format!("{begin}{line_end}{lines}"),
                "private key",
            );
        }
    }
    let (begin, end) = marks("RSA PRIVATE KEY");
    let head = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00AA11BB22CC33DD44EE55FF00AA11BB\n";
    let lines = block(3, "\n");
    check(
        "x {} y",
        &format!("{begin}\n{head}\n{lines}\n{end}"),
        "private key",
    );
    check(
        "x {}\nThanks for it",
        &format!("{begin}\n{head}\n{lines}"),
        "private key",
    );
    check(
        "  1: {}",
        &format!("{begin}\n  2: {}\n 99: {end}", block(4, "\n  3: ")),
        "private key",
    );
}

#[test]
fn assigned_passwords() {
    for text in [
        "DB_PASSWORD={}",
        "export DB_PASSWORD='{}'",
        "db_password: {}",
        "password: {}\nuser: x",
        "password = \"{}\"",
        "Password: {}.",
        "**Password:** {}",
        "**Password**: `{}`",
        "{\"password\": \"{}\"}",
        "{\"password\":\"{}",
        "{\\\"password\\\": \\\"{}\\\", \\\"a\\\": 1}",
        "{\\\"x\\\": \\\"{\\\\\\\"dbPassword\\\\\\\": \\\\\\\"{}\\\\\\\"}\\\"}",
        "{'passwd': '{}'}",
        "config['password'] = '{}'",
        "let password = \"{}\";",
        "let password: &str = \"{}\";",
        "const password: string = '{}'",
        "if password == \"{}\" {",
        "'password' => '{}',",
        "connect(user=\"x\", password=\"{}\")",
        "login --password {} --user x",
        "login --password={}",
        "[\"--password\", \"{}\"]",
        "Server=h;Uid=sa;Pwd={};Database=d",
        "https://x.test/?user=a&password={}&b=1",
        "user=a&passwd={}\\u0026b=1",
        "<password>{}</password>",
        "- name: DB_PASSWORD\n  value: {}\n",
        "{\"name\":\"DB_PASSWORD\",\"value\":\"{}\"}",
        "<input type=\"password\" value=\"{}\">",
        "mysql -u root -p{} shop",
        "mysqldump -p'{}' shop",
        "sshpass -p {} ssh x",
        "tool -p'{}'",
        "curl -u admin:{} https://x.test",
        "curl --user 'admin:{}' https://x.test",
        "docker login -u me -p {} x.test",
        "redis-cli -a {} ping",
        "密码 password：{}，然后",
        "the password is {} for now",
        "the password is: {}",
        "PASSWORD={}\\nUSER=x",
        "\\npassword={}\\n",
    ] {
        check(text, "hunter22", "password");
    }
    for text in [
        "DB_PASSWORD={}",
        "password: {}\n",
        "{\"password\":\"{}\"}",
        "Pwd={};",
    ] {
        check(text, "swordfish", "password");
        check(text, "Tr0ub4dor&3", "password");
        check(text, "p@$$w0rd!", "password");
    }
    check(
        "{\"password\": \"{}\"}",
        "invented horse battery staple",
        "password",
    );
    check("{\"password\": \"{}\"}", "odd\\\"mark", "password");
}

#[test]
fn assigned_keys() {
    for (text, kind) in [
        ("STRIPE_SECRET_KEY={}", "access key"),
        ("api_key: {}", "access key"),
        ("API key: {}", "access key"),
        ("{\"apiKey\": \"{}\"}", "access key"),
        ("{\\\"client_secret\\\":\\\"{}\\\"}", "secret"),
        ("client-secret={}", "secret"),
        ("GITHUB_TOKEN={}", "token"),
        ("//registry.test/:_authToken={}", "token"),
        ("token: {}", "token"),
        ("access_token={}&x=1", "token"),
        ("--token {}", "token"),
        ("\"--api-key\",\n  \"{}\"", "access key"),
        ("AccountName=x;AccountKey={};y", "access key"),
        ("private_key = '{}'", "private key"),
        ("{\"auth\": \"{}\"}", "credentials"),
        ("credentials: \"{}\"", "credentials"),
    ] {
        check(text, &body(24), kind);
    }
    check("SECRET_KEY={}", "inventedword", "access key");
    check("{\"client_secret\": \"{}\"}", "inventedword", "secret");
    check(
        "api_key={}",
        "3f1c9a52-0b7d-4e7e-9c3e-5d1f2a3b4c5d",
        "access key",
    );
    check("TOKEN={}", &"0123456789abcdef".repeat(64), "token");
}
