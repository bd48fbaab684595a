//! What a token for some buckets opens: those, and nothing of others.

use super::http::{BILLING, Door, EYES, OPS};

const CONFIG: &str = "[defaults]\nrate = '1/h'\n";

#[test]
fn an_operator_of_some_buckets_acts_on_those_by_name_and_on_nothing_else() {
    let some = "[[http.token]]\nname = 'ops'\nfile = 'ops'\nmay = 'operate'\nmatch = 'sms:*'\n";
    let door = Door::open(&format!("{CONFIG}{some}"));
    let status = |request: &str, body: &str| door.ask(request, &[OPS], body.as_bytes()).status;
    for (request, body, is) in [
        ("POST /v1/buckets/sms:a/pause", "", 200),
        ("POST /v1/buckets/sms:%2A/pause", "", 200), // a name with a star in it, no glob
        ("POST /v1/buckets/pause?match=sms:a", "", 200),
        ("GET /v1/buckets/sms:a", "", 200),
        ("POST /v1/buckets/mail:a/pause", "", 403),
        ("GET /v1/buckets/mail:a", "", 403),
        ("POST /v1/buckets/pause?match=sms:*", "", 403),
        ("POST /v1/buckets/pause?match=*", "", 403),
        ("POST /v1/buckets/sms:a/pause?match=*", "", 400),
        ("POST /v1/budgets/sms:a/pause", "", 403),
        ("POST /v1/buckets/sms:a/slow", r#"{"for":"1s","in":"mail"}"#, 403),
        ("GET /v1/buckets", "", 403),
        ("GET /v1/dead?bucket=sms:*", "", 403),
        ("POST /v1/dead/drop", r#"{"bucket":"sms:*"}"#, 403),
    ] {
        assert_eq!(status(request, body), is, "{request}");
    }
}

#[test]
fn an_operator_of_some_buckets_names_no_budget_and_no_workers_of_others() {
    let some = "[[http.token]]\nname = 'ops'\nfile = 'ops'\nmay = 'operate'\nmatch = 'billing:*'\n\
                [[http.token]]\nname = 'eyes'\nfile = 'eyes'\nmay = 'read'\nmatch = 'billing:*'\n\
                [[http.token]]\nname = 'billing'\nfile = 'billing'\nmay = 'operate'\n";
    let tree = "[[budget]]\nmatch = 'twilio'\nrate = '100/s'\n[[budget]]\nmatch = 'billing:all'\nrate = '100/s'\n\
                [[budget]]\nmatch = 'billing:b'\nrate = '100/s'\n\
                [[budget]]\nmatch = 'billing:sub'\nrate = '100/s'\nwithin = 'twilio'\n\
                [[bucket]]\nmatch = 'billing:deep'\nwithin = 'billing:sub'\n\
                [[bucket]]\nmatch = 'billing:in'\nwithin = 'twilio'\n[[bucket]]\nmatch = 'billing:own'\nwithin = 'billing:all'\n\
                [[bucket]]\nmatch = 'billing:*'\nroute = 'bills'\n";
    let door = Door::open(&format!("{CONFIG}{tree}{some}"));
    let status = |request: &str, token, body: &str| door.ask(request, &[token], body.as_bytes()).status;
    let set = |bucket: &str, body: &str| status(&format!("PATCH /v1/buckets/billing:{bucket}/settings"), OPS, body);
    for (bucket, body, is) in [
        // A budget: only one that the token is for, and only out of one that it is for.
        ("a", r#"{"within": "twilio"}"#, 403),
        ("a", r#"{"rate": "5/s", "within": "twilio"}"#, 403),
        ("a", r#"{"within": "billing"}"#, 403),
        ("a", r#"{"within": "billing:b"}"#, 200),
        ("own", r#"{"within": "billing:b"}"#, 200),
        ("own", r#"{"within": ""}"#, 200),
        ("in", r#"{"within": ""}"#, 403),
        ("in", r#"{"within": "billing:b"}"#, 403),
        // A star in the name of a bucket: what it stands for is not known to be the token's own.
        ("%2A", r#"{"within": "{1}"}"#, 403),
        ("%2A", r#"{"within": "twilio:{1}"}"#, 403),
        // A share of a budget: only among its own.
        ("a", r#"{"weight": 7}"#, 200),
        ("in", r#"{"weight": 7}"#, 403),
        ("deep", r#"{"weight": 7}"#, 403), // a budget further above is of others
        ("deep", r#"{"within": ""}"#, 403),
        ("in", r#"{"lease": "7d"}"#, 403),
        ("deep", r#"{"lease": "7d"}"#, 403),
        ("a", r#"{"lease": "9s"}"#, 200),
        ("a", r#"{"cost_max": 100000}"#, 403),
        ("in", r#"{"cost_max": 7}"#, 403),
        // Workers: those that the configuration gives.
        ("a", r#"{"route": "mail"}"#, 403),
        ("a", r#"{"route": "default"}"#, 403),
        ("a", r#"{"route": "bills"}"#, 200),
        ("in", r#"{"route": "default"}"#, 200),
        ("in", r#"{"route": "bills"}"#, 403),
        // All others are about the bucket's own jobs.
        ("in", r#"{"rate": "7/s", "capacity": 9, "attempts": 9, "backoff": {"max": "9m"}}"#, 200),
        ("in", r#"{"overflow": "drop-oldest", "catch_up": "0s", "admit": [], "quota": "9/d", "job_rate": "9/m"}"#, 200),
        (
            "in",
            r#"{"concurrency": 1, "ordered": true, "slow": {"adaptive": true}, "told": "off", "dedup": "9s", "ttl": "9s"}"#,
            200,
        ),
    ] {
        assert_eq!(set(bucket, body), is, "billing:{bucket} {body}");
    }
    assert_eq!(status("PATCH /v1/buckets/billing:a/settings/within?for=1s", OPS, "\"twilio\""), 403);
    assert_eq!(status("PATCH /v1/buckets/settings/within?match=billing:a", OPS, "\"twilio\""), 403);
    // What an operator of all has set is not undone where it holds something of others.
    let unset = |target: &str| status(&format!("DELETE /v1/buckets/billing:in/settings{target}"), OPS, "");
    for (key, value) in [("weight", "3"), ("route", "\"night\""), ("within", "\"\"")] {
        assert_eq!(status(&format!("PATCH /v1/buckets/billing:in/settings/{key}"), BILLING, value), 200);
    }
    assert_eq!(
        (unset("/within"), unset("/weight"), unset(""), unset("/rate"), unset("/route")),
        (403, 403, 403, 200, 200)
    );
    let unset_all = "DELETE /v1/buckets/billing:in/settings";
    assert_eq!((status(unset_all, BILLING, ""), status(unset_all, OPS, "")), (200, 200), "there is nothing of others");
    assert_eq!(status("DELETE /v1/buckets/billing:own/settings", OPS, ""), 200, "its budgets are the token's");
    // A slow-down, or a limit that is told, of a budget above.
    for (of, body) in [("slow", r#"{"for": "1s", "in": "BUDGET"}"#), ("told", r#"{"clear": true, "in": "BUDGET"}"#)] {
        let ask = |bucket: &str, budget: &str| {
            status(&format!("POST /v1/buckets/billing:{bucket}/{of}"), OPS, &body.replace("BUDGET", budget))
        };
        assert_eq!((ask("in", "twilio"), ask("own", "billing:all")), (403, 200), "{of}");
    }
    // Nor is it told how much others have to do.
    let forecast = |set: &str| status("POST /v1/what-if", EYES, &format!(r#"{{"bucket": "billing:a", "set": {set}}}"#));
    let asked = [r#"{"within": "twilio"}"#, r#"{"route": "mail"}"#, r#"{"within": "billing:b"}"#, r#"{"rate": "1/s"}"#];
    assert_eq!(asked.map(forecast), [403, 403, 200, 200]);
    for request in
        ["GET /v1/events", "GET /v1/budgets/twilio", "GET /v1/routes", "GET /metrics/buckets?match=a", "GET /metrics"]
    {
        assert_eq!(status(request, EYES, ""), 403, "{request}");
    }
}
