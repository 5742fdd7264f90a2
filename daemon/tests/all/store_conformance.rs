//! One test suite for all three stores, which must behave alike.
//!
//! Postgres: every test creates its own database on the temporary cluster that MEMCTL_TEST_POSTGRES names (an
//! administrator's URL). Without it these tests fail.

use crate::store;

macro_rules! suite {
    ($($module:ident :: $case:ident),* $(,)?) => {
        suite!(@backend memory, Memory, $($module::$case),*);
        suite!(@backend sqlite, Sqlite, $($module::$case),*);
        suite!(@backend postgres, Postgres, $($module::$case),*);
    };
    (@backend $name:ident, $backend:ident, $($module:ident :: $case:ident),*) => {
        mod $name {
            use super::store::{self, Backend};
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    store::run(Backend::$backend, store::$module::$case).await;
                }
            )*
        }
    };
}

suite! {
    sessions::an_empty_store_answers_everything,
    sessions::a_session_is_found_again,
    sessions::descriptions_survive,
    sessions::jobs_gather_what_their_sessions_say,
    sessions::runs_of_a_name_stay_apart,
    sessions::an_import_is_the_latest_however_old_its_recording_is,
    sessions::launches_at_once_have_runs_of_their_own,
    sessions::jobs_are_listed_and_found,
    sessions::sessions_are_ordered_by_rank_then_start,
    sessions::what_cannot_be_stored_is_refused_at_open,
    sessions::many_open_the_same_session_at_once,
    appends::an_append_is_there_with_its_sums,
    appends::sending_again_changes_nothing,
    appends::an_overlap_counts_what_is_new,
    appends::all_or_nothing,
    appends::a_missing_session_is_named,
    appends::nothing_comes_after_the_end,
    appends::impossible_items_are_refused,
    appends::the_largest_figures_survive,
    appends::sums_stop_at_their_limit,
    appends::gaps_are_counted_once,
    appends::devices_add_and_replace,
    appends::segments_say_what_is_in_force,
    appends::epoch_ends_are_replaced,
    appends::many_sessions_in_one_transaction,
    appends::many_append_at_once,
    appends::large_payloads_survive,
    appends::ten_thousand_items,
    appends::a_caller_that_goes_away_leaves_all_or_nothing,
    reading::chunks_are_selected_as_rust_says,
    reading::items_are_selected_as_rust_says,
    reading::payloads_come_in_the_order_asked_for,
    reading::items_come_after_a_number_and_as_many_as_asked_for,
    reading::items_come_after_a_number_and_no_more_than_a_page_may_have,
    reading::the_keyframe_before_an_event,
    retention::deleting_a_job_leaves_the_others,
    retention::deleted_jobs_come_back_empty,
    retention::old_jobs_go_whole,
    retention::the_oldest_chunks_of_ended_sessions_go_first,
    retention::idle_keyframes_go_with_their_chunks,
    retention::limits_that_hold_change_nothing,
    retention::appends_and_removals_at_once,
    retention::a_clock_that_jumps_makes_nothing_old,
    retention::a_daemon_that_starts_with_a_wrong_clock_waits,
    retention::everything_counts,
    retention::a_noisy_job_does_not_push_out_another,
    retention::a_job_that_ended_goes_whole_when_its_chunks_are_not_enough,
    retention::answers_about_holders_go_the_oldest_first_behind_chunks_and_before_all_else,
    alert_records::a_record_is_changed_by_who_knows_its_version,
    alert_records::records_are_selected,
    alert_records::of_many_at_once_one_wins,
    alert_records::what_is_too_large_is_refused_and_what_is_too_much_is_full,
    reading::a_watch_is_kept_with_its_session,
    reading::answers_about_holders_are_kept_with_their_session,
    reading::the_latest_answer_about_holders_is_the_one_that_came_last,
    reading::a_job_keeps_so_many_answers_about_holders_and_so_many_bytes,
    tenants::names_repeat_and_no_tenant_sees_the_others,
    tenants::a_session_is_continued_by_its_agent_alone,
    tenants::tokens_are_kept_and_revoked,
    tenants::the_audit_log_is_read_by_tenant_the_newest_first,
    sessions::a_closed_store_says_so,
}
