//! Sessions of visitors.

use axum::extract::State;
use http::StatusCode;
use mw_domain::{Owner, SessionId, UserId};
use mw_store::sessions::{CreateSession, TouchSession};

use crate::answer::{self, Answer};
use crate::app::App;
use crate::cursor::Scope;
use crate::docs::{IdempotencyKey, PageParams};
use crate::error::{Code, Problem};
use crate::extract::{JsonOptional, Keyed, KeyedOptional, Path, Query};
use crate::refusal::OrProblem;
use crate::wire::list::{List, ListView};
use crate::wire::sessions::{LoggedInView, LoginBody, SessionBody, SessionView, TouchBody};

/// Open a session
///
/// Its id is made by the service, unguessable, where none is given. It lives 24 hours after its last activity.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", operation_id = "create_session",
    params(IdempotencyKey), request_body = SessionBody, responses((status = 201, body = SessionView)),
    extensions(("x-optional-body" = json!(true)), ("x-problems" = json!(["session_bound"]))))]
pub(crate) async fn create(
    State(app): State<App>,
    KeyedOptional { once, mut body }: KeyedOptional<SessionBody>,
) -> Answer {
    let (session_id, made_of) = if let Some(session_id) = body.session_id.take() {
        (session_id, None)
    } else {
        let uuid = app.shop.ids.unguessable();
        (SessionId::made_of(uuid), Some(uuid))
    };
    let now = app.shop.now();
    let session = body.session(session_id, now, now.plus_millis(app.shop.settings.sessions.ttl_ms));
    session.check().map_err(|invalid| Problem::field(&invalid.field, invalid.detail))?;
    let done = app
        .shop
        .store
        .create_session(CreateSession { session, made_of, now, once })
        .await
        .or_problem(&app)?;
    let view = SessionView::from(&done.value);
    answer::done(StatusCode::CREATED, done.replayed, view.size(), &view)
}

/// A session
#[utoipa::path(get, path = "/v1/sessions/{session_id}", tag = "sessions", operation_id = "read_session",
    responses((status = 200, body = SessionView)), extensions(("x-problems" = json!(["session_not_found"]))))]
pub(crate) async fn read(State(app): State<App>, Path(session_id): Path<SessionId>) -> Answer {
    let session = app.shop.store.session(&session_id, app.shop.now()).await.or_problem(&app)?;
    let session = session.ok_or_else(|| Problem::new(Code::SessionNotFound, "no such session"))?;
    let view = SessionView::from(&session);
    answer::ok(view.size(), &view)
}

/// Note activity and change data
///
/// Slides the expiry. Data is merged; null removes a key. Activity alone is written at most once a minute.
#[utoipa::path(patch, path = "/v1/sessions/{session_id}", tag = "sessions", operation_id = "touch_session",
    request_body = TouchBody, responses((status = 200, body = SessionView)),
    extensions(("x-optional-body" = json!(true)), ("x-problems" = json!(["session_not_found"]))))]
pub(crate) async fn touch(
    State(app): State<App>,
    Path(session_id): Path<SessionId>,
    JsonOptional(body): JsonOptional<TouchBody>,
) -> Answer {
    let command = TouchSession {
        session_id,
        data: body.data.unwrap_or_default(),
        lifetime: app.shop.settings.sessions,
        now: app.shop.now(),
    };
    let session = app.shop.store.touch_session(command).await.or_problem(&app)?;
    let view = SessionView::from(&session);
    answer::ok(view.size(), &view)
}

/// Bind the user and merge the guest's cart
///
/// As one change. Again with the same user is fine; another user is refused.
#[utoipa::path(post, path = "/v1/sessions/{session_id}/login", tag = "sessions", operation_id = "login",
    params(IdempotencyKey), request_body = LoginBody, responses((status = 200, body = LoggedInView)),
    extensions(("x-problems" = json!(["session_not_found", "session_bound"]))))]
pub(crate) async fn login(
    State(app): State<App>,
    Path(session_id): Path<SessionId>,
    Keyed { once, body }: Keyed<LoginBody>,
) -> Answer {
    let mode = body.merge_mode.unwrap_or_default().into();
    let user = Owner::User(body.user_id.clone());
    let done = app.shop.login(session_id, body.user_id, mode, once).await.or_problem(&app)?;
    answer::done(StatusCode::OK, done.replayed, 1_024, &LoggedInView::new(&done.value, &user))
}

/// End a session
#[utoipa::path(delete, path = "/v1/sessions/{session_id}", tag = "sessions", operation_id = "delete_session",
    responses((status = 204)), extensions(("x-problems" = json!(["session_not_found"]))))]
pub(crate) async fn delete(State(app): State<App>, Path(session_id): Path<SessionId>) -> Answer {
    app.shop.store.delete_session(&session_id, app.shop.now()).await.or_problem(&app)?;
    Ok(answer::no_content())
}

/// The user's live sessions
///
/// Newest first.
#[utoipa::path(get, path = "/v1/users/{user_id}/sessions", tag = "sessions", operation_id = "list_sessions",
    params(PageParams), responses((status = 200, body = List<SessionView>)))]
pub(crate) async fn list(State(app): State<App>, Path(user_id): Path<UserId>, query: Query) -> Answer {
    let scope = Scope::of("sessions").with(user_id.as_str());
    let page = query.page(&scope)?;
    let page = app.shop.store.user_sessions(&user_id, app.shop.now(), page).await.or_problem(&app)?;
    answer::ok(64 + page.items.len() * 512, &ListView::new(&page, &scope, SessionView::from))
}

/// End all sessions of the user
#[utoipa::path(delete, path = "/v1/users/{user_id}/sessions", tag = "sessions", operation_id = "revoke_sessions",
    responses((status = 204)))]
pub(crate) async fn revoke(State(app): State<App>, Path(user_id): Path<UserId>) -> Answer {
    app.shop.store.revoke_sessions(&user_id, app.shop.now()).await.or_problem(&app)?;
    Ok(answer::no_content())
}
