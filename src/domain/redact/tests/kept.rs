//! What must stay.

use std::borrow::Cow;

use super::super::redact;
use super::marks;

#[test]
fn facts() {
    let hex = "0a1b2c3d4e5f60718293a4b5c6d7e8f9";
    for text in [
        "",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8 fixed it",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "docker://alpine:3.20@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "id 3f1c9a52-0b7d-4e7e-9c3e-5d1f2a3b4c5d",
        "/srv/app/src/secrets/token.rs and ~/.ssh/id_ed25519",
        "C:\\new\\token\\password.txt",
        "https://example.test:8080/a/b?x=1&key=name#top",
        "https://host:8080/users/@me and http://[::1]:80/@x",
        "http://localhost:$PORT/x@y http://h:{port}/a@b",
        "ssh://git@host.test:22/repo.git git@host.test:a/b",
        "version 1.2.3-beta.1+build5",
        "dGhpcyBpcyBiYXNlNjQgdGV4dA==",
        "cursor eyJpZCI6MTIzNDU2Nzg5MCwiYSI6MX0 next",
        "call_Abc123Def456Ghi789 toolu_01AbCdEfGh chatcmpl-A1b2C3d4E5f6",
        "+44 20 7946 0958 on 2024-01-31T10:20:30Z",
        "The colour of the licence was grey; the organisation's secretary authored it.",
        "トークンの有効期限は3600秒です。密码：请见保险库。",
        "Das Passwort: siehe Tresor 🙂",
        "пароль password: смотри в сейфе",
    ] {
        assert!(
            matches!(redact(text), Cow::Borrowed(same) if same == text),
            "{text:?} → {}",
            redact(text)
        );
    }
    for prefix in ["sess_", "msg_", "comp_", "turn_"] {
        for text in [
            format!("in {prefix}{hex} there"),
            format!("{{\"session_id\":\"{prefix}{hex}\"}}"),
            format!("token={prefix}{hex}"),
        ] {
            assert_eq!(redact(&text), text);
        }
    }
}

#[test]
fn prose() {
    for text in [
        "the token expires in 3600 seconds",
        "password: see vault",
        "Password: required",
        "Password: 16-character minimum",
        "Password: 12 characters",
        "the password is required; the secret is out",
        "the --password flag is read, and --token is not",
        "bearer authentication, Bearer token, a bearer of news",
        "Authorization: Bearer token required",
        "Authorization: Bearer <token>",
        "Authorization: Bearer $TOKEN",
        "\"Authorization: Bearer ${API_KEY}\"",
        "Basic authentication",
        "Secret: the meeting is at 17:30",
        "token: expires 2024-01-31",
        "Auth: OAuth2",
        "auth: basic",
        "Cookie: see below. cookies are small",
        "Key: value",
        "keyboard=qwerty author=smith1 tokenizer=cl100k_base secretary: Jones99",
        "token count: 1234, tokens: 99, total_tokens=12345",
        "Forgot password? Reset_password: true",
        "PASS: test_parser_42 FAIL: 0",
        "PWD=/home/me/work OLDPWD=/tmp",
        "npm_config_registry_url and sk-learn-style-names and key-value pairs hf_hub_download",
        "cache key-0 and sk-… and ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "sk-loading-spinner-with-dots-and-circle",
    ] {
        assert_eq!(redact(text), text);
    }
    let (begin, end) = marks("PRIVATE KEY");
    let text = format!("it begins with {begin} and ends with {end}, as you know");
    assert_eq!(redact(&text), text);
    let public = marks("PUBLIC KEY");
    let text = format!("{}\n{}\n{}", public.0, super::block(3, "\n"), public.1);
    assert_eq!(redact(&text), text);
}

#[test]
fn code() {
    for text in [
        "{\"max_tokens\": 4096, \"tokens\": 1234, \"token\": 17}",
        "max_tokens=2000 max_token=100000 next_token=\"abc12345def\"",
        "token = next()",
        "let token = lexer.next_token()?;",
        "const token = await getToken2(user);",
        "let password: String",
        "fn login(user: &str, password: &str, token: Option<String>) -> bool",
        "password: String, token: CancellationToken, secret: SecretString,",
        "interface A { password: string; apiKey?: string }",
        "def f(password: str = None, token=None, api_key=os.environ[\"API_KEY\"]):",
        "login(user=user, password=password, token=token)",
        "connect(password=pw, secret=cfg.secret)",
        "password = config.password",
        "token = req.headers.authorization",
        "self.password = password; this.token = token;",
        "let token = Token::Ident;",
        "password=${DB_PASSWORD} TOKEN=$TOKEN SECRET=$(cat x) --password \"$PASS\"",
        "password: {{ vault_password }}",
        "password=*** token=<token> secret=\"\" api_key='YOUR_API_KEY' password=xxxxx",
        "password: null, token: true, secret: none, pwd=\"\"",
        "\"password=\" + pw + \"&x=1\"",
        "f\"Bearer {token}\" and 'Bearer ' + token",
        "{\"type\": \"password\", \"label\": \"Password\", \"token\": \"hello\"}",
        "{\"password\": {\"type\": \"string\"}, \"required\": [\"password\"]}",
        "{\"password\": \"Please enter your password\"}",
        "{\"expected\": \"token\", \"secret_name\": \"abc123def\"}",
        "input[type=password] { color: red } .token { margin: 0 }",
        "match token { Token::Plus => 1, password => 2 }",
        "login --password --stdin\nlogin --token -v",
        "helm login --password-stdin x1",
        "pub log_passwd: __u32, pub const ES_PASSWORD: u32 = 32u32; pub const A_TOKEN: ty_7 = ty_7::A_TOKEN;",
        "token: node.colon2_token, generate_private_key: x25519_generate_private_key,",
        "UserPass = 0x02, Self::SharedSecret => b\"shared_secret\", fn f(cbpassword : u32)",
        "mkdir -p dir1 && docker run -p 8080:80 -u 1000:1000 x",
        "password_file=/run/secrets/abc123 token_path: /x/y1",
        "apiKey: process.env.API_KEY, credentials: 'same-origin'",
        "primary_key=id42abcdef partition_key: \"user12345\" public_key = \"abc123def456\"",
        "cacheKey = \"user:12345\"; sort_key=created_at9",
        "password_hash VARCHAR(255), token_type: \"bearer\"",
    ] {
        assert_eq!(redact(text), text);
    }
}

#[test]
fn placeholders() {
    for text in [
        "password=[redacted: password]",
        "\"token\": \"[redacted: token]\"",
        "Authorization: Bearer [redacted: bearer token]",
        "https://u:[redacted: password]@h/",
        "Cookie: a=[redacted: cookie]; b=[redacted: cookie]",
        "[redacted: private key]\\nAbc",
        "the password is [redacted: password]",
        "API key: [redacted: access key], --password [redacted: password]",
    ] {
        assert!(
            matches!(redact(text), Cow::Borrowed(_)),
            "{text:?} → {}",
            redact(text)
        );
    }
}
