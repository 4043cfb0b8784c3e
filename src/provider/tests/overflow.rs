use rstest::rstest;
use serde_json::{Value, json};

use crate::provider::overflow::{MAX_ERROR_BYTES, Refusal, classify, embedded_status};

const TABLE: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/overflow-errors.json"
));

fn is_overflow(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::Overflow { .. })
}

fn overflow(prompt_tokens: u64, window: u64) -> Refusal {
    let some = |number: u64| (number > 0).then_some(number);
    Refusal::Overflow {
        prompt_tokens: some(prompt_tokens),
        window: some(window),
    }
}

fn openai(message: &str) -> Vec<u8> {
    json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": null}})
        .to_string()
        .into_bytes()
}

#[test]
fn s34_rate_limit_taken_for_a_context_overflow() {
    let rows: Vec<Value> = serde_json::from_str(TABLE).unwrap();
    assert!(rows.len() >= 34);
    for (number, row) in rows.iter().enumerate() {
        let status = u16::try_from(row["http_status"].as_u64().unwrap()).unwrap();
        let body = row["body"].to_string();
        let expected = row["is_context_overflow"].as_bool().unwrap();
        let found = classify(status, body.as_bytes());
        assert_eq!(
            is_overflow(found),
            expected,
            "row {number}: {found:?} {row}"
        );
        // The same text behind the status of a rate limit is one.
        assert_eq!(classify(429, body.as_bytes()), Refusal::RateLimit);
        // And as the text of a normal answer it is nothing.
        let answer = json!({"choices": [{"message": {"role": "assistant", "content": body}}]});
        assert_eq!(classify(200, answer.to_string().as_bytes()), Refusal::Other);
        // Passed on by a proxy: in a string, in a list, in the text of an exception, as 200.
        if status != 429 {
            let wrapped =
                json!({"error": {"message": "Provider returned error", "metadata": {"raw": body}}});
            let listed = json!([{"error": {"message": format!("Upstream said: {body}")}}]);
            let twice = json!({"error": Value::String(json!({"detail": body}).to_string())});
            for outer in [wrapped, listed, twice] {
                for status in [200, 400, 500] {
                    let found = classify(status, outer.to_string().as_bytes());
                    if row["body"].get("choices").is_none() {
                        assert_eq!(is_overflow(found), expected, "row {number}: {outer}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_table_s_numbers_are_read() {
    let rows: Vec<Value> = serde_json::from_str(TABLE).unwrap();
    let expected = [
        (131_244, 128_000),
        (0, 0),
        (213_462, 200_000),
        (188_240, 200_000),
        (140_210, 131_072),
        (40_212, 32_768),
        (39_024, 40_960),
        (204_511, 200_000),
        (66_202, 65_536),
        (1_407, 256),
        (99_073, 131_072),
        (0, 0),
        (0, 0),
        (0, 0),
        (42_328, 40_000),
        (291_351, 262_144),
    ];
    let overflows = rows.iter().filter(|row| row["is_context_overflow"] == true);
    for (row, (prompt, window)) in overflows.zip(expected) {
        assert_eq!(
            classify(400, row["body"].to_string().as_bytes()),
            overflow(prompt, window),
            "{row}"
        );
    }
}

#[rstest]
#[case::openai_old(
    "This model's maximum context length is 4097 tokens, however you requested 4226 tokens (3226 in your prompt; 1000 for the completion). Please reduce your prompt; or completion length.",
    3_226,
    4_097
)]
#[case::openai_curly(
    "This model\u{2019}s maximum context length is 16,385 tokens. However, your messages resulted in 17,012 tokens.",
    17_012,
    16_385
)]
#[case::shouting("THIS MODEL'S MAXIMUM CONTEXT LENGTH IS 8192 TOKENS.", 0, 8_192)]
#[case::deepseek(
    "This model's maximum context length is 65536 tokens. However, you requested 71020 tokens (62828 in the messages, 8192 in the completion). Please reduce the length of the messages or completion.",
    62_828,
    65_536
)]
#[case::groq("Please reduce the length of the messages or completion.", 0, 0)]
#[case::vllm_cap(
    "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context length is 4096 tokens and your request has 2104 input tokens (2000 > 4096 - 2104).",
    2_104,
    4_096
)]
#[case::vllm_new(
    "This model's maximum context length is 262144 tokens. However, you requested 128000 output tokens and your prompt contains at least 134145 input tokens, for a total of at least 262145 tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=134145)",
    134_145,
    262_144
)]
#[case::vllm_decoder(
    "The decoder prompt (length 5021) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller than the number of text tokens.",
    5_021,
    4_096
)]
#[case::sglang(
    "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
    61_709,
    40_960
)]
#[case::sglang_total(
    "Requested token count exceeds the model's maximum context length of 40960 tokens. You requested a total of 50000 tokens: 42000 tokens from the input messages and 8000 tokens for the completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit.",
    42_000,
    40_960
)]
#[case::tgi(
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and 500 `max_new_tokens`",
    9_000,
    8_193
)]
#[case::tgi_inputs(
    "Input validation error: `inputs` must have less than 1024 tokens. Given: 2087",
    2_087,
    1_024
)]
#[case::together(
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 32769. Given: 40211 `inputs` tokens and 1 `max_new_tokens`",
    40_211,
    32_769
)]
#[case::fireworks(
    "The prompt is too long: 150112, model maximum context length: 131071",
    150_112,
    131_071
)]
#[case::xai(
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    537_812,
    131_072
)]
#[case::cohere(
    "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292. Try using a shorter prompt, or enable prompt truncating.",
    4_292,
    4_081
)]
#[case::cohere_chat(
    "too many tokens: size limit exceeded by 11326 tokens. Try using shorter or fewer inputs. The limit for this model is 132096 tokens.",
    0,
    132_096
)]
#[case::lm_studio(
    "Trying to keep the first 10136 tokens when context the overflows. However, the model is loaded with context length of only 7866 tokens, which is not enough. Try to load the model with a larger context length, or provide a shorter input.",
    10_136,
    7_866
)]
#[case::lm_studio_new(
    "The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length, or provide a shorter input",
    0,
    0
)]
#[case::watsonx(
    "Invalid input argument for Model 'ibm/x': the number of input tokens 4098 cannot exceed the total tokens limit 4096 for this model",
    4_098,
    4_096
)]
#[case::vertex(
    "Unable to submit request because the input token count is 1048577 but model only supports up to 1048576. Reduce the input token count and try again.",
    1_048_577,
    1_048_576
)]
#[case::gemini(
    "The input token count exceeds the maximum number of tokens allowed 1048576.",
    0,
    1_048_576
)]
#[case::bedrock(
    "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
    0,
    0
)]
#[case::bedrock_max(
    "Too many input tokens. Max input tokens: 8192, request input token count: 12345",
    12_345,
    8_192
)]
#[case::copilot(
    "prompt token count of 391491 exceeds the limit of 128000",
    391_491,
    128_000
)]
#[case::cloudflare(
    "AiError: The estimated number of input and maximum output tokens (32768) exceeded this model context window limit (24000).",
    0,
    24_000
)]
#[case::llama_cpp_python("Requested tokens (2409) exceed context window of 2048", 2_409, 2_048)]
#[case::ollama("the input length exceeds the context length", 0, 0)]
#[case::tabby("Prompt length 9012 is greater than max_seq_len 8192", 9_012, 8_192)]
#[case::trt(
    "prompt length (9000) exceeds maximum input length (8192)",
    9_000,
    8_192
)]
#[case::mlc(
    "Request prompt has 9001 tokens in total, larger than the model input length limit 8192.",
    9_001,
    8_192
)]
#[case::ds4(
    "Prompt has 32769 tokens, but the configured context size is 32768 tokens",
    32_769,
    32_768
)]
#[case::minimax("invalid params, context window exceeds limit (2013)", 0, 0)]
#[case::dashscope(
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]",
    0,
    98_304
)]
#[case::zhipu("Prompt exceeds max length", 0, 0)]
#[case::github(
    "Request body too large for gpt-x model. Max size: 8000 tokens.",
    0,
    8_000
)]
#[case::mistral(
    "Prompt contains 99 tokens and 0 draft tokens, too large for model with 64 maximum context length",
    99,
    64
)]
#[case::litellm(
    "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - Input is too big",
    0,
    0
)]
#[case::litellm_json(
    "litellm.BadRequestError: AnthropicException - {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"prompt is too long: 205429 tokens > 200000 maximum\"}}. Received Model Group=x",
    205_429,
    200_000
)]
#[case::litellm_bytes(
    "litellm.BadRequestError: AnthropicException - b'{\"type\":\"error\",\"error\":{\"message\":\"prompt is too long: 205429 tokens > 200000 maximum\"}}'",
    205_429,
    200_000
)]
#[case::python_repr(
    "Error code: 400 - {'error': {'message': \"This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.\", 'type': 'BadRequestError', 'param': None, 'code': 400}}",
    9_001,
    8_192
)]
fn each_provider_s_words(#[case] message: &str, #[case] prompt: u64, #[case] window: u64) {
    assert_eq!(classify(400, &openai(message)), overflow(prompt, window));
    // A flat error, one that is only a string, a list of details, a plain text, a 500, a 200.
    let flat = json!({"object": "error", "message": message, "code": 400}).to_string();
    let string = json!({"code": "invalid", "error": message}).to_string();
    let detail = json!({"detail": [{"loc": ["body"], "msg": message}]}).to_string();
    let list = json!({"errors": [{"code": "x", "message": message}], "trace": "f8"}).to_string();
    for body in [&flat, &string, &detail, &list] {
        assert_eq!(
            classify(400, body.as_bytes()),
            overflow(prompt, window),
            "{body}"
        );
        assert_eq!(
            classify(500, body.as_bytes()),
            overflow(prompt, window),
            "{body}"
        );
        assert_eq!(classify(429, body.as_bytes()), Refusal::RateLimit);
    }
    assert_eq!(classify(200, flat.as_bytes()), overflow(prompt, window));
    assert_eq!(classify(200, string.as_bytes()), overflow(prompt, window));
    assert_eq!(classify(200, &openai(message)), overflow(prompt, window));
    // Quoted, or in an answer, it is only talked about.
    let quoted = openai(&format!(
        "Invalid value: '{}' is not one of the allowed ones.",
        message.replace(['\'', '"', '{', '['], "")
    ));
    assert_eq!(
        classify(400, &quoted),
        Refusal::Other,
        "{}",
        String::from_utf8_lossy(&quoted)
    );
    if !message.starts_with('<') {
        assert_eq!(classify(400, message.as_bytes()), overflow(prompt, window));
    }
    assert_eq!(classify(200, message.as_bytes()), Refusal::Other);
}

#[rstest]
#[case::codes(json!({"error": {"code": "context_length_exceeded", "message": "no"}}), overflow(0, 0))]
#[case::wrapped_code(json!({"error": {"type": "litellm.ContextWindowExceededError"}}), overflow(0, 0))]
#[case::copilot(json!({"error": {"code": "model_max_prompt_tokens_exceeded", "message": "prompt token count of 9 exceeds the limit of 8"}}), overflow(9, 8))]
#[case::code_before_rate(json!({"error": {"code": "context_length_exceeded", "message": "see your quota"}}), overflow(0, 0))]
#[case::camel(json!({"error": {"errorCode": "ContextLengthExceeded"}}), overflow(0, 0))]
#[case::bedrock(json!({"Message": "Input is too long for requested model."}), overflow(0, 0))]
#[case::deep(json!({"error": {"innererror": {"details": [{"error": {"message": "prompt is too long"}}]}}}), overflow(0, 0))]
#[case::says_429(json!({"error": {"code": 429, "message": "prompt is too long", "type": "context_length_exceeded"}}), Refusal::RateLimit)]
#[case::says_429_inside(json!({"error": {"code": 400, "metadata": {"raw": "{\"error\":{\"code\":\"429\",\"message\":\"maximum context length\"}}"}}}), Refusal::RateLimit)]
fn structure(#[case] body: Value, #[case] expected: Refusal) {
    assert_eq!(classify(400, body.to_string().as_bytes()), expected);
}

#[rstest]
#[case::per_minute(
    "This request would exceed your organization's rate limit of 40,000 input tokens per minute. Please reduce the prompt length or the maximum tokens requested."
)]
#[case::anthropic_minute("Number of request tokens has exceeded your per-minute rate limit")]
#[case::anthropic_credit("Your credit balance is too low to access the Anthropic API.")]
#[case::anthropic_usage("You have reached your specified API usage limits.")]
#[case::bedrock_day("Too many tokens per day, please wait before trying again.")]
#[case::bedrock("Too many tokens, please wait before trying again.")]
#[case::throttled("Throttling error: Too many tokens")]
#[case::deepseek("Insufficient Balance; top up in billing")]
#[case::tpm(
    "Request too large for gpt-x (TPM): Limit 10000, Requested 14000; maximum context length is not the matter"
)]
#[case::cohere("trial token rate limit exceeded, limit is 100000 tokens per minute")]
#[case::mistral("Service tier capacity exceeded: quota of tokens, prompt too long")]
fn rates(#[case] message: &str) {
    for status in [400, 403, 413, 500, 200] {
        assert_eq!(
            classify(status, &openai(message)),
            Refusal::RateLimit,
            "{status}"
        );
    }
}

#[rstest]
#[case::output(
    "max_tokens: 128000 > 64000, which is the maximum allowed number of output tokens for this model"
)]
#[case::output_bedrock(
    "The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum tokens value that is lower."
)]
#[case::output_vertex(
    "Unable to submit request because it has a maxOutputTokens value of 100000 but the supported range is from 1 (inclusive) to 65537 (exclusive)."
)]
#[case::output_tgi("Input validation error: `max_new_tokens` must be <= 512. Given: 1000")]
#[case::output_dashscope("Range of max_tokens should be [1, 8192]")]
#[case::output_alone(
    "'max_tokens' or 'max_completion_tokens' is too large: 100000. This model's maximum context length is 4096 tokens and your request has 20 input tokens (100000 > 4096 - 20)."
)]
#[case::output_alone_vllm(
    "You passed 20 input tokens and requested 200000 output tokens. However, the model's context length is only 131072 tokens, resulting in a maximum input length of 0 tokens. Please reduce the length of the input prompt."
)]
#[case::budget("`max_tokens` must be greater than `thinking.budget_tokens`.")]
#[case::images("messages.0.content: too many images: 101 > 100 maximum")]
#[case::images_2("At most 1 image(s) may be provided in one request.")]
#[case::image_size("image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes")]
#[case::tools(
    "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 200 instead."
)]
#[case::name(
    "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got a string with length 99 instead."
)]
#[case::description("tools.0.function.description exceeds max length 1024")]
#[case::cache_key("Invalid 'prompt_cache_key': string too long.")]
#[case::pairing("Missing corresponding tool call for tool response message")]
#[case::pairing_2(
    "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
)]
#[case::roles(
    "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."
)]
#[case::echo(
    "1 validation error: {'type': 'literal_error', 'loc': ('body', 'messages', 0, 'role'), 'msg': 'Input should be', 'input': 'x prompt is too long maximum context length'}"
)]
#[case::echo_pydantic(
    "1 validation error for ChatRequest role [type=literal_error, input_value=maximum context length is 5 exceeded, input_type=str]"
)]
#[case::quoted("Unsupported value: 'prompt is too long' is not a valid model.")]
#[case::model("The model 'context-window-128k' does not exist")]
#[case::filter("Your prompt was flagged as potentially violating our usage policy.")]
#[case::bytes("Request exceeds the maximum size")]
#[case::nothing("")]
fn other_refusals(#[case] message: &str) {
    for status in [400, 413, 422, 500, 200] {
        assert_eq!(
            classify(status, &openai(message)),
            Refusal::Other,
            "{status}"
        );
    }
}

#[test]
fn only_error_members_are_read() {
    let words = "prompt is too long: 9 tokens > 8 maximum";
    for body in [
        json!({"choices": [{"message": {"content": words}}], "error": null}),
        json!({"message": {"role": "assistant", "content": words}, "done": true}),
        json!({"output": words, "text": words, "input": words, "param": words}),
        json!({"error": {"message": "bad", "input": words, "param": words, "request": {"messages": [{"content": words}]}}}),
        json!({"detail": [{"msg": "Field required", "input": {"message": words, "error": words}}]}),
    ] {
        for status in [200, 400, 500] {
            assert_eq!(
                classify(status, body.to_string().as_bytes()),
                Refusal::Other,
                "{body}"
            );
        }
    }
    // A success with a message is no error, unless it says that it is one.
    let flat = json!({"message": words}).to_string();
    assert_eq!(classify(200, flat.as_bytes()), Refusal::Other);
    assert_eq!(classify(400, flat.as_bytes()), overflow(9, 8));
}

#[test]
fn nothing_sent_by_a_stranger_hurts() {
    let words = "prompt is too long";
    let deep = format!("{}\"{words}\"{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(classify(400, deep.as_bytes()), Refusal::Other);
    let deep = format!(
        "{}\"{words}\"{}",
        "{\"error\":".repeat(100),
        "}".repeat(100)
    );
    assert_eq!(classify(400, deep.as_bytes()), Refusal::Other);
    let mut nested = words.to_owned();
    for _ in 0..12 {
        nested = json!({ "error": nested }).to_string();
    }
    assert_eq!(classify(400, nested.as_bytes()), Refusal::Other);
    let wide = json!({"errors": vec!["x"; 60_000]}).to_string();
    assert_eq!(classify(400, wide.as_bytes()), Refusal::Other);
    let large = format!("{{\"error\":\"{words}{}\"}}", " ".repeat(MAX_ERROR_BYTES));
    assert_eq!(classify(400, large.as_bytes()), Refusal::Other);
    let braces = json!({"error": "{[{'message': '".repeat(10_000)}).to_string();
    assert_eq!(classify(400, braces.as_bytes()), Refusal::Other);
    for junk in [
        &b"\xff\xfe\x00"[..],
        b"",
        b"null",
        b"7",
        b"\"\"",
        b"{",
        b"<html>prompt is too long</html>",
        b"\"prompt",
    ] {
        assert_eq!(classify(400, junk), Refusal::Other);
    }
    assert_eq!(classify(400, b"\xff prompt is too long"), overflow(0, 0));
    assert_eq!(classify(400, b"\"prompt is too long\""), overflow(0, 0));
    // Numbers that are none.
    for odd in [
        "99999999999999999999999 tokens",
        "0 tokens",
        "8k tokens",
        "1.4s",
        "1,2,3 tokens",
        ",,,",
        "...",
    ] {
        let body = openai(&format!("maximum context length is {odd}"));
        assert_eq!(classify(400, &body), overflow(0, 0), "{odd}");
    }
}

#[rstest]
#[case(r#"{"error":{"code":502,"message":"x"}}"#, Some(502))]
#[case(r#"{"error":{"code":"429"}}"#, Some(429))]
#[case(r#"[{"error":{"code":400,"status":"INVALID_ARGUMENT"}}]"#, Some(400))]
#[case(r#"{"object":"error","code":404,"error":{"code":500}}"#, Some(404))]
#[case(r#"{"error":"x","status_code":503}"#, Some(503))]
#[case(r#"{"error":{"code":3051}}"#, None)]
#[case(r#"{"error":{"code":200}}"#, None)]
#[case(r#"{"error":null,"code":500}"#, None)]
#[case(r#"{"choices":[],"status":500}"#, None)]
#[case("<html>", None)]
fn the_status_in_the_body(#[case] body: &str, #[case] status: Option<u16>) {
    assert_eq!(embedded_status(body.as_bytes()), status);
}
