//! The client against agents that are absent, do not answer, or close the connection.

#![allow(clippy::unwrap_used, reason = "tests say what they expect, their helpers too")]

use std::path::PathBuf;

use linerate_api::{Client, ClientError, EventKind, MigrationId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

/// Answers one request with these bytes and closes.
fn answer_once(answer: &'static str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        assert_ne!(stream.read(&mut request).await.unwrap(), 0);
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    (folder, path)
}

#[tokio::test]
async fn absent_and_dead_agents_have_different_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let absent = Client::new(&path).status().await.unwrap_err();
    assert!(matches!(absent, ClientError::SocketAbsent { .. }), "{absent}");
    assert!(absent.hint().contains("linerate agent"));
    drop(UnixListener::bind(&path).unwrap());
    let dead = Client::new(&path).status().await.unwrap_err();
    assert!(matches!(dead, ClientError::NobodyListens { .. }), "{dead}");
    assert!(absent.is_unreachable() && dead.is_unreachable());
}

#[tokio::test]
async fn a_refusal_of_the_agent_arrives_unchanged() {
    let (_folder, path) = answer_once(
        "HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n\
         {\"code\":\"guest_unknown\",\"retry_can_help\":false,\"message\":\"no guest web\",\"hint\":\"linerate vm list\"}",
    );
    let error = Client::new(path).guest("web").await.unwrap_err();
    let ClientError::Agent { status, body } = &error else { panic!("{error}") };
    assert_eq!(
        (*status, body.code.as_str(), error.hint().as_str()),
        (404, "guest_unknown", "linerate vm list")
    );
}

#[tokio::test]
async fn a_refusal_that_is_no_json_is_shown_all_the_same() {
    let (_folder, path) = answer_once("HTTP/1.1 405 Method Not Allowed\r\nconnection: close\r\n\r\nwhat?");
    let error = Client::new(path).status().await.unwrap_err();
    assert_eq!(error.to_string(), "the agent answered HTTP 405: what?");
}

#[tokio::test]
async fn an_event_stream_that_ends_early_is_an_error_with_the_attach_command() {
    let (_folder, path) = answer_once(
        "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n\n{\"at_us\":1,\"kind\":\"link_restored\",\"link\":0}\n{\"at_us\":2,\"ki",
    );
    let mut events = Client::new(path).events(&MigrationId("3f9a".into())).await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().kind, EventKind::LinkRestored { link: 0 });
    let error = events.next().await.unwrap_err();
    assert!(matches!(error, ClientError::Cut { .. }), "{error}");
    assert!(error.hint().contains("linerate migration attach 3f9a"));
}

#[tokio::test]
async fn a_stream_ends_with_finished_and_waits_for_nothing_more() {
    let (_folder, path) = answer_once(
        "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"at_us\":1,\"kind\":\"finished\",\"outcome\":\"completed\"}\n",
    );
    let mut events = Client::new(path).events(&MigrationId("3f9a".into())).await.unwrap();
    assert!(matches!(events.next().await.unwrap().unwrap().kind, EventKind::Finished { .. }));
    assert!(events.next().await.unwrap().is_none());
}
