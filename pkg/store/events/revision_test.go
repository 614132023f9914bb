package events

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// did is the change of a key: its value before and after. "" means absent.
type did struct{ Key, Before, After string }

const (
	itsAlert  = "alerts/0003/ops/a/failures"
	moreAlert = "alerts/0003/ops/~more/shared/slack"
	oneCode   = "alerts/cluster/not_evaluated"
	silence   = "alerts/silences/ops/k3f9"

	alertOpen   = `{"uid":"u","since":"2026-11-20T12:00:00Z","opened_at":"2026-11-20T12:00:02Z","run":"r1","failures":2,"notify":["ops/slack"]`
	alertClosed = alertOpen + `,"closed":{"at":"2026-11-20T13:00:00Z","why":"succeeded","run":"r2"}}`

	inQueue   = "shards/0003/queue/ops/a/r1"
	inHistory = "shards/0003/history/ops/a/r1"
	inInbox   = "runs/n1/0003/ops/a/r1"
	itsDead   = "shards/0003/dead/ops/a/r1"
	itsSpec   = "tasks/ops/a"
	itsEntry  = "shards/0003/tasks/ops/a"
	itsSecret = "secrets/ops/db"
	itsCursor = "shards/0003/sent/ops/a"

	secretSet  = `{"generation":1,"change":"set","keys":["a","b"],"key_id":"k1","sealed":"eA==","updated_by":{"subject":"ann"}}`
	secretGone = `{"generation":2,"change":"deleted","updated_by":{"subject":"bob"}}`

	entryRuns      = `{"uid":"u","generation":2,"schedule":"@hourly","timezone":"UTC","from":"2026-11-20T12:00:00Z","anchor":"2026-11-20T12:00:00Z"`
	waits          = `{"uid":"u","scheduled_time":"2026-11-20T12:00:00Z","state":"queued","reason":"overlap","trigger":"schedule","attempt":1}`
	waitsManual    = `{"uid":"u","scheduled_time":"2026-11-20T12:00:00Z","state":"queued","reason":"manual","trigger":"manual","attempt":1}`
	asksWith       = `{"uid":"u","state":"queued","reason":"manual","trigger":"manual","attempt":1,"created_by":{"subject":"ann"},"env_names":["A","B"],"env":{"A":"1","B":"2"}}`
	asksAgain      = `{"uid":"u","state":"queued","reason":"manual","trigger":"manual","attempt":1,"retry_of":"r0","created_by":{"subject":"ann"},"env_names":["A"]}`
	dismissed      = `{"uid":"u","state":"failed","reason":"exit_code","trigger":"schedule","attempt":3,"message":"oh","dismissed_by":{"subject":"ann"}}`
	asksHandedBack = `{"uid":"u","state":"queued","reason":"handed_back","trigger":"manual","attempt":1,"created_by":{"subject":"ann"}}`
	waitsRetry     = `{"uid":"u","state":"queued","reason":"retry","trigger":"schedule","attempt":2,"attempts":[{"attempt":1,"state":"failed","reason":"exit_code","node":"n1"}]}`
	waitsLost      = `{"uid":"u","state":"queued","reason":"retry","trigger":"schedule","attempt":2,"attempts":[{"attempt":1,"state":"lost","reason":"node_lost","node":"gone"}]}`
	waitsTarget    = `{"uid":"u","state":"queued","reason":"target_down","trigger":"schedule","attempt":3,"attempts":[{"attempt":1,"state":"failed"}],"unsent":{"count":1,"first":"2026-11-20T12:00:07Z","last":"2026-11-20T12:00:07Z","message":"connection refused"}}`
	waitsAgain     = `{"uid":"u","state":"queued","reason":"handed_back","trigger":"schedule","attempt":1}`
	sent           = `{"uid":"u","state":"dispatched","trigger":"schedule","attempt":1,"created_at":"2026-11-20T12:00:00Z","generation":2,"instance":"i","action":{"noop":{}}}`
	runs           = `{"uid":"u","state":"running","trigger":"schedule","attempt":1,"started_at":"2026-11-20T12:00:01Z","generation":2,"instance":"i","action":{"noop":{}}}`
	runsAsked      = `{"uid":"u","state":"running","trigger":"schedule","attempt":1,"generation":2,"instance":"i","action":{"noop":{}},"cancel_requested":true,"cancelled_by":{"subject":"ann"}}`
	runsGone       = `{"uid":"u","state":"running","trigger":"schedule","attempt":1,"generation":2,"instance":"i","action":{"noop":{}},"cancel_requested":true,"cancel_reason":"replaced"}`
	pauseAsked     = `{"uid":"u","state":"running","trigger":"schedule","attempt":1,"generation":2,"instance":"i","action":{"noop":{}},"pause_requested":true,"paused_by":{"subject":"ann"}}`
	standsStill    = `{"uid":"u","state":"paused","trigger":"schedule","attempt":1,"generation":2,"instance":"i","action":{"noop":{}},"pause_requested":true,"paused_by":{"subject":"ann"},"paused_at":"2026-11-20T12:00:05Z"}`
	resumeAsked    = `{"uid":"u","state":"paused","trigger":"schedule","attempt":1,"generation":2,"instance":"i","action":{"noop":{}},"resumed_by":{"subject":"bob"},"paused_by":{"subject":"ann"},"paused_at":"2026-11-20T12:00:05Z"}`
	unpausable     = `{"uid":"u","state":"running","trigger":"schedule","attempt":1,"generation":2,"instance":"i","action":{"noop":{}},"message":"it could not be"}`
	ended          = `{"uid":"u","state":"failed","reason":"exit_code","trigger":"schedule","attempt":3,"message":"oh"}`
	lost           = `{"uid":"u","state":"lost","reason":"node_lost","trigger":"schedule"}`
	cancelled      = `{"uid":"u","state":"cancelled","reason":"cancelled_by_user","trigger":"schedule","cancelled_by":{"subject":"ann"}}`
	dropped        = `{"uid":"u","state":"skipped","reason":"dropped","trigger":"schedule"}`
	skipped        = `{"uid":"u","state":"skipped","reason":"overlap","trigger":"schedule"}`
	skipped2       = `{"uid":"u","state":"skipped","reason":"overlap","trigger":"schedule","last":"2026-11-20T13:00:00Z","count":2}`
	missed         = `{"uid":"u","state":"missed","reason":"no_owner","trigger":"schedule","last":"2026-11-20T13:00:00Z","count":7}`
)

// flowRuns is the record of a run of a workflow that is under way, with more fields of its parts.
func flowRuns(fields string) string {
	return `{"uid":"u","state":"running","trigger":"schedule","cancelled_by":{"subject":"ann"},"fan_out":{` + fields + `"count":2,"ended":1,"flow":{"steps":[{"name":"a","kind":"noop"}]}}}`
}

// flowPaused is the same while it is paused.
var flowPaused = strings.Replace(flowRuns(""), `"uid":"u",`, `"uid":"u","paused_at":"2026-11-20T13:00:00Z","paused_by":{"subject":"bob"},`, 1)

// story returns an event as a line of text.
func story(e task.Event) string {
	words := []string{e.Kind, e.Action}
	add := func(name, value string) {
		if value != "" {
			words = append(words, name+"="+value)
		}
	}

	add("by", e.Actor.String())
	add("in", e.Namespace)
	add("task", e.Task)
	add("secret", e.Secret)
	add("alert", e.Alert)
	add("run", e.Run)
	add("state", e.State)
	add("was", e.Previous)
	add("node", e.Node)
	add("reason", e.Reason)

	if e.Generation > 0 {
		add("generation", fmt.Sprint(e.Generation))
	}

	if e.Count > 0 {
		add("count", fmt.Sprint(e.Count))
	}

	if e.Dead {
		add("dead", "yes")
	}

	if e.Shard != nil && e.Kind == task.EventShard {
		add("shard", fmt.Sprint(*e.Shard))
	}

	add("detail", e.Detail)

	return strings.Join(words, " ")
}

func TestTranslator_TellsWhatARevisionDid(t *testing.T) {
	const run = " in=ops task=a run=r1"
	tests := []struct {
		name string
		did  []did
		want []string
	}{
		{"a watermark", []did{{"shards/0003/watermark", "x", "y"}}, nil},
		{"a token", []did{{"access/tokens/x", "", "{}"}, {"access/fence", "", "{}"}, {"audit/x", "", "{}"}}, nil},
		{"a strange key", []did{{"shards/3/tasks/ops/a", "", "{}"}, {"else", "", ""}, {"runs/n1/x", "", "{}"}}, nil},

		{"a task is created", []did{{itsSpec, "", `{"generation":1,"updated_by":{"subject":"ann"},"change":"created"}`}, {itsEntry, "", entryRuns + "}"}},
			[]string{"task created by=ann in=ops task=a generation=1"}},
		{"a task is created by an older version", []did{{itsSpec, "", `{"generation":1,"updated_by":{"subject":"ann"}}`}},
			[]string{"task created by=ann in=ops task=a generation=1"}},
		{"a task is changed", []did{{itsSpec, `{"generation":1,"change":"created"}`, `{"generation":2,"change":"updated","updated_by":{"subject":"bob"}}`},
			{"versions/ops/a/000000000001", "", "{}"}, {itsEntry, entryRuns + "}", entryRuns + "}"}},
			[]string{"task updated by=bob in=ops task=a generation=2"}},
		{"a task is paused", []did{{itsSpec, `{"generation":1}`, `{"generation":2,"paused":true,"change":"paused","pause_reason":"move","updated_by":{"subject":"bob"}}`}},
			[]string{"task paused by=bob in=ops task=a reason=move generation=2"}},
		{"a task is paused by an older version", []did{{itsSpec, `{"generation":1}`, `{"generation":2,"paused":true}`}},
			[]string{"task paused in=ops task=a generation=2"}},
		{"a task is resumed", []did{{itsSpec, `{"generation":1,"paused":true}`, `{"generation":2,"change":"resumed","updated_by":{"subject":"bob"}}`}},
			[]string{"task resumed by=bob in=ops task=a generation=2"}},
		{"a task is rolled back", []did{{itsSpec, `{"generation":1}`, `{"generation":2,"change":"rolled_back"}`}},
			[]string{"task rolled_back in=ops task=a generation=2"}},
		{"a spec is written again as it was", []did{{itsSpec, `{"generation":1}`, `{"generation":1}`}}, nil},
		{"a task is deleted with what waits", []did{{itsSpec, `{"uid":"u"}`, ""}, {itsEntry, entryRuns + "}", ""}, {inQueue, waits, ""}, {inHistory + "0", ended, ""}, {itsDead, "{}", ""},
			{"deleted/ops/a", "", `{"uid":"u","deleted_by":{"subject":"ann"},"why":"ttl"}`}},
			[]string{"task deleted by=ann in=ops task=a detail=ttl", "run deleted by=ann" + run + " was=queued reason=task_deleted"}},
		{"a task is deleted by an older version", []did{{itsSpec, `{"uid":"u"}`, ""}}, []string{"task deleted in=ops task=a"}},
		{"a tombstone goes", []did{{"deleted/ops/a", `{}`, ""}}, nil},
		{"an owner counts", []did{{itsEntry, entryRuns + `,"own":{"runs":1}}`, entryRuns + `,"own":{"runs":2}}`}}, nil},
		{"triggers were sent", []did{{itsCursor, `{"create":7,"run":"r0"}`, `{"create":9,"run":"r1"}`}, {"shards/0004/triggers/ops/b/a~r1", "", "{}"}}, nil},
		{"a cursor was repaired", []did{{itsCursor, "{", `{"create":9}`}},
			[]string{"task repaired in=ops task=a detail=it was not known which of its ended runs had started its dependents; those that had ended before start none"}},
		{"a source is deleted", []did{{itsCursor, `{"create":9}`, ""}}, nil},
		{"a task has failed too often", []did{{itsEntry, entryRuns + "}", entryRuns + `,"paused":true,"own":{"pauses":[{"since":"2026-11-20T12:00:00Z","by":{"subject":"carillon"},"reason":"5 in a row"}]}}`}, {inInbox, runs, ""}, {inHistory, "", ended}},
			[]string{"task paused by=carillon in=ops task=a reason=5 in a row generation=2", "run ended by=n1" + run + " state=failed node=n1 reason=exit_code detail=oh"}},
		{"a spec that cannot be read", []did{{itsSpec, "", "{"}}, []string{"task updated in=ops task=a detail=" + unreadableRecord}},

		{"a tick is dispatched", []did{{inInbox, "", sent}, {"shards/0003/watermark", "x", "y"}}, []string{"run dispatched by=owner" + run + " state=dispatched node=n1 generation=2"}},
		{"a tick waits", []did{{inQueue, "", waits}}, []string{"run queued by=owner" + run + " state=queued reason=overlap"}},
		{"a person asks", []did{{inQueue, "", waitsManual}}, []string{"run queued" + run + " state=queued reason=manual"}},
		{"ann asks, with variables", []did{{inQueue, "", asksWith}}, []string{"run queued by=ann" + run + " state=queued reason=manual detail=env A, B"}},
		{"ann has a dead run run again", []did{{inQueue, "", asksAgain}, {itsDead, ended, ""}}, []string{"run queued by=ann" + run + " state=queued reason=manual detail=again, after r0; env A"}},
		{"a dead run is to be dismissed", []did{{itsDead, ended, dismissed}}, nil},
		{"a dead run is trimmed", []did{{itsDead, ended, ""}}, nil},
		{"a dead run is dismissed", []did{{itsDead, dismissed, ""}}, []string{"run dismissed by=ann" + run + " state=failed reason=exit_code"}},
		{"a run that was to be dismissed is run again", []did{{inQueue, "", asksAgain}, {itsDead, dismissed, ""}}, []string{"run queued by=ann" + run + " state=queued reason=manual detail=again, after r0; env A"}},
		{"a run that was to be dismissed goes with its task", []did{{itsSpec, `{"uid":"u"}`, ""}, {itsDead, dismissed, ""}}, []string{"task deleted in=ops task=a"}},
		{"what ann asked for is handed back", []did{{inInbox, sent, ""}, {inQueue, "", asksHandedBack}}, []string{"run handed_back by=n1" + run + " state=queued was=n1 reason=handed_back"}},
		{"it waits for something else", []did{{inQueue, waitsManual, waits}}, []string{"run waiting by=owner" + run + " state=queued reason=overlap"}},
		{"it waits for the same", []did{{inQueue, waits, waits}}, nil},
		{"what waited is dispatched", []did{{inQueue, waits, ""}, {inInbox, "", sent}}, []string{"run dispatched by=owner" + run + " state=dispatched node=n1 generation=2"}},
		{"it starts", []did{{inInbox, sent, runs}}, []string{"run started by=n1" + run + " state=running node=n1"}},
		{"it is adopted", []did{{inInbox, runs, runs}}, nil},
		{"a workflow is to be cancelled", []did{{inQueue, flowRuns(""), flowRuns(`"cancel":"cancelled_by_user",`)}}, []string{"run cancelling by=ann" + run + " state=running reason=cancelled_by_user detail=1 of 2 parts"}},
		{"a workflow is to be cancelled with force", []did{{inQueue, flowRuns(`"cancel":"cancelled_by_user",`), strings.Replace(flowRuns(`"cancel":"cancelled_by_user",`), `"steps"`, `"forced":true,"steps"`, 1)}},
			[]string{"run cancelling by=ann" + run + " state=running reason=cancelled_by_user detail=1 of 2 parts, with its cleanup"}},
		{"a workflow is paused", []did{{inQueue, flowRuns(""), flowPaused}}, []string{"run paused by=bob" + run + " state=running detail=1 of 2 parts"}},
		{"a workflow is resumed", []did{{inQueue, flowPaused, flowRuns("")}}, []string{"run resumed" + run + " state=running detail=1 of 2 parts"}},
		{"a step of a workflow has begun", []did{{inQueue, flowRuns(""), strings.Replace(flowRuns(""), `"count":2`, `"count":3`, 1)}}, nil},
		{"it is to be cancelled", []did{{inInbox, runs, runsAsked}}, []string{"run cancelling by=ann" + run + " state=running node=n1 reason=cancelled_by_user"}},
		{"it is to be replaced", []did{{inInbox, runs, runsGone}}, []string{"run cancelling by=owner" + run + " state=running node=n1 reason=replaced"}},
		{"it starts, and is to be cancelled", []did{{inInbox, sent, runsAsked}}, []string{"run started by=n1" + run + " state=running node=n1", "run cancelling by=ann" + run + " state=running node=n1 reason=cancelled_by_user"}},
		{"it is to be paused", []did{{inInbox, runs, pauseAsked}}, []string{"run pausing by=ann" + run + " state=running node=n1"}},
		{"it is paused", []did{{inInbox, pauseAsked, standsStill}}, []string{"run paused by=n1" + run + " state=paused node=n1"}},
		{"it starts, and is paused", []did{{inInbox, sent, standsStill}}, []string{"run started by=n1" + run + " state=paused node=n1", "run paused by=n1" + run + " state=paused node=n1", "run pausing by=ann" + run + " state=paused node=n1"}},
		{"it is to go on", []did{{inInbox, standsStill, resumeAsked}}, []string{"run resuming by=bob" + run + " state=paused node=n1"}},
		{"it goes on", []did{{inInbox, resumeAsked, runs}}, []string{"run resumed by=n1" + run + " state=running node=n1"}},
		{"it cannot be paused", []did{{inInbox, pauseAsked, unpausable}}, []string{"run unpausable by=n1" + run + " state=running node=n1 detail=it could not be"}},
		{"it is adopted as it stands", []did{{inInbox, standsStill, standsStill}}, nil},
		{"it ends", []did{{inInbox, runs, ""}, {inHistory, "", ended}, {itsDead, "", ended}}, []string{"run ended by=n1" + run + " state=failed node=n1 reason=exit_code dead=yes detail=oh"}},
		{"it is retried", []did{{inInbox, runs, ""}, {inQueue, "", waitsRetry}}, []string{"run retrying by=n1" + run + " state=queued was=n1 reason=retry detail=attempt ended: failed; exit_code"}},
		{"it was not sent", []did{{inInbox, sent, ""}, {inQueue, "", waitsTarget}}, []string{"run retrying by=n1" + run + " state=queued was=n1 reason=target_down detail=attempt not sent: connection refused"}},
		{"it is handed back", []did{{inInbox, sent, ""}, {inQueue, "", waitsAgain}}, []string{"run handed_back by=n1" + run + " state=queued was=n1 reason=handed_back"}},
		{"it is cancelled while it waits", []did{{inQueue, waits, ""}, {inHistory, "", cancelled}}, []string{"run ended by=ann" + run + " state=cancelled reason=cancelled_by_user"}},
		{"it is dropped", []did{{inQueue, waits, ""}, {inHistory, "", dropped}}, []string{"run ended by=owner" + run + " state=skipped reason=dropped"}},
		{"its node says that it is lost", []did{{inInbox, runs, ""}, {inHistory, "", lost}}, []string{"run ended by=n1" + run + " state=lost node=n1 reason=node_lost"}},
		{"its node is gone", []did{{"runs/gone/0003/ops/a/r1", runs, ""}, {inHistory, "", lost}}, []string{"run ended by=owner" + run + " state=lost node=gone reason=node_lost"}},
		{"its node is gone, and it is retried", []did{{"runs/gone/0003/ops/a/r1", runs, ""}, {inQueue, "", waitsLost}},
			[]string{"run retrying by=owner" + run + " state=queued was=gone reason=retry detail=attempt ended: lost; node_lost"}},
		{"from one inbox to another", []did{{"runs/gone/0003/ops/a/r1", sent, ""}, {inInbox, "", sent}}, []string{"run dispatched by=owner" + run + " state=dispatched was=gone node=n1 generation=2"}},
		{"from one inbox to another, told otherwise", []did{{inInbox, "", sent}, {"runs/gone/0003/ops/a/r1", sent, ""}}, []string{"run dispatched by=owner" + run + " state=dispatched was=gone node=n1 generation=2"}},
		{"a tick is skipped", []did{{inHistory, "", skipped}}, []string{"run skipped by=owner" + run + " state=skipped reason=overlap"}},
		{"so is the next", []did{{inHistory, skipped, skipped2}}, []string{"run extended by=owner" + run + " state=skipped reason=overlap count=2"}},
		{"ticks are missed", []did{{inHistory, "", missed}}, []string{"run missed by=owner" + run + " state=missed reason=no_owner count=7"}},
		{"a record is written again", []did{{inHistory, ended, ended}}, nil},
		{"a record is trimmed", []did{{inHistory, ended, ""}, {itsDead, "{}", ""}}, nil},
		{"a late result", []did{{inHistory + "~late~77", "", ended}}, []string{"run late" + run + " reason=exit_code detail=failed, but it had been declared lost"}},
		{"an attempt is purged", []did{{inInbox, runs, ""}}, []string{"run deleted" + run + " was=running node=n1"}},
		{"an attempt that cannot be read", []did{{inInbox, "", "{"}}, []string{"run dispatched by=owner" + run + " state=dispatched node=n1 detail=" + unreadableRecord}},
		{"two runs, a task and an owner", []did{{inInbox, "", sent}, {itsSpec, "", `{}`}, {"owners/0007", "", `{"node":"n2","term":9}`}, {"shards/0003/history/ops/b/r9", "", skipped}},
			[]string{"shard assigned by=boss node=n2 shard=7", "task created in=ops task=a", "run dispatched by=owner" + run + " state=dispatched node=n1 generation=2",
				"run skipped by=owner in=ops task=b run=r9 state=skipped reason=overlap"}},

		{"a shard moves", []did{{"owners/0003", `{"node":"owner"}`, `{"node":"n1","term":9}`}, {"moves/0003", "{}", ""}}, []string{"shard assigned by=boss was=owner node=n1 shard=3"}},
		{"a shard has no owner", []did{{"owners/0003", `{"node":"owner"}`, ""}}, []string{"shard unassigned was=owner shard=3"}},
		{"a secret is set", []did{{itsSecret, "", secretSet}}, []string{"secret set by=ann in=ops secret=db generation=1 detail=a, b under key k1"}},
		{"a secret is rotated", []did{{itsSecret, secretSet, `{"generation":2,"change":"rotated","keys":["a"],"key_id":"k2","sealed":"eA=="}`}}, []string{"secret rotated in=ops secret=db generation=2 detail=a under key k2"}},
		{"a secret is deleted", []did{{itsSecret, secretSet, secretGone}}, []string{"secret deleted by=bob in=ops secret=db generation=2"}},
		{"a deleted secret is forgotten", []did{{itsSecret, secretGone, ""}}, nil},
		{"a secret is deleted by hand", []did{{itsSecret, secretSet, ""}}, []string{"secret deleted in=ops secret=db"}},
		{"a secret that cannot be read", []did{{itsSecret, "", "{"}}, []string{"secret set in=ops secret=db detail=" + unreadableRecord}},

		{"an alert opens", []did{{itsAlert, "", alertOpen + "}"}},
			[]string{"alert opened by=owner in=ops task=a alert=failures run=r1 detail=2 in a row; notifies ops/slack"}},
		{"an alert opens with the run that failed", []did{{itsAlert, "", alertOpen + "}"}, {inInbox, runs, ""}, {inHistory, "", ended}},
			[]string{"run ended by=n1" + run + " state=failed node=n1 reason=exit_code detail=oh", "alert opened by=owner in=ops task=a alert=failures run=r1 detail=2 in a row; notifies ops/slack"}},
		{"its receivers change", []did{{itsAlert, alertOpen + "}", alertOpen + `,"labels":{"owner":"x"}}`}}, nil},
		{"somebody works on it", []did{{itsAlert, alertOpen + "}", alertOpen + `,"acknowledged":{"at":"2026-11-20T12:10:00Z","by":{"subject":"ann"}}}`}},
			[]string{"alert acknowledged by=ann in=ops task=a alert=failures run=r1"}},
		{"it is written again", []did{{itsAlert, alertOpen + `,"acknowledged":{"at":"2026-11-20T12:10:00Z","by":{"subject":"ann"}}}`, alertOpen + `,"acknowledged":{"at":"2026-11-20T12:10:00Z","by":{"subject":"ann"}},"labels":{"a":"b"}}`}}, nil},
		{"somebody else works on it", []did{{itsAlert, alertOpen + `,"acknowledged":{"at":"2026-11-20T12:10:00Z","by":{"subject":"ann"}}}`, alertOpen + `,"acknowledged":{"at":"2026-11-20T12:20:00Z","by":{"subject":"bob"}}}`}},
			[]string{"alert acknowledged by=bob in=ops task=a alert=failures run=r1"}},
		{"it closes", []did{{itsAlert, alertOpen + "}", alertClosed}}, []string{"alert closed by=owner in=ops task=a alert=failures run=r2 reason=succeeded"}},
		{"a person closes it", []did{{itsAlert, alertOpen + "}", alertOpen + `,"closed":{"at":"2026-11-20T13:00:00Z","why":"dismissed","by":{"subject":"ann"}}}`}, {itsDead, dismissed, ""}},
			[]string{"run dismissed by=ann" + run + " state=failed reason=exit_code", "alert closed by=ann in=ops task=a alert=failures reason=dismissed"}},
		{"it opens again", []did{{itsAlert, alertClosed, alertOpen + "}"}}, []string{"alert reopened by=owner in=ops task=a alert=failures run=r1 detail=2 in a row; notifies ops/slack"}},
		{"a closed alert is deleted", []did{{itsAlert, alertClosed, ""}}, nil},
		{"an open alert is deleted by hand", []did{{itsAlert, alertOpen + "}", ""}}, []string{"alert closed by=owner in=ops task=a alert=failures run=r1"}},
		{"an alert that cannot be read", []did{{itsAlert, alertOpen + "}", "{"}}, nil},
		{"an alert that can be read again", []did{{itsAlert, "{", alertOpen + "}"}}, []string{"alert opened by=owner in=ops task=a alert=failures run=r1 detail=2 in a row; notifies ops/slack"}},
		{"a deadline passes", []did{{"alerts/0003/ops/a/success_by", "", `{"deadline":"2026-11-20T12:00:00Z"}`}}, []string{"alert opened by=owner in=ops task=a alert=success_by detail=deadline 2026-11-20T12:00:00Z"}},
		{"alerts are counted", []did{{moreAlert, "", `{"more":{"success_by":2,"failures":9}}`}}, []string{"alert opened by=owner in=ops alert=more detail=9 failures; 2 success_by; for shared/slack"}},
		{"more alerts are counted", []did{{moreAlert, `{"more":{"failures":9}}`, `{"more":{"failures":10}}`}}, nil},
		{"a problem of the cluster", []did{{oneCode, "", `{"text":"3 tasks are not evaluated"}`}}, []string{"alert opened by=boss alert=cluster reason=not_evaluated detail=3 tasks are not evaluated"}},
		{"a rule", []did{{"alerts/rules/ops/nightly", "", `{"alerts":{},"updated_at":"2026-11-20T12:00:00Z","updated_by":{"subject":"ann"}}`}}, []string{"alert set by=ann in=ops alert=rule detail=nightly"}},
		{"a rule is deleted", []did{{"alerts/rules/ops/nightly", `{"alerts":{}}`, ""}}, []string{"alert deleted in=ops alert=rule detail=nightly"}},
		{"a silence", []did{{silence, "", `{"glob":"web-*","since":"2026-11-20T12:00:00Z","until":"2026-11-20T14:00:00Z","by":{"subject":"ann"},"reason":"a move"}`}},
			[]string{"alert silenced by=ann in=ops alert=silence reason=a move detail=web-* until 2026-11-20T14:00:00Z"}},
		{"a silence is ended", []did{{silence, `{"selector":"team=data","until":"2026-11-20T14:00:00Z","by":{"subject":"ann"}}`, `{"selector":"team=data","until":"2026-11-20T13:00:00Z","by":{"subject":"ann"},"ended_by":{"subject":"bob"}}`}},
			[]string{"alert unsilenced by=bob in=ops alert=silence detail=team=data"}},
		{"a silence that has ended is deleted", []did{{silence, `{"selector":"team=data","until":"2026-11-20T14:00:00Z"}`, ""}}, nil},
		{"what was sent", []did{{"alerts/sent/ops/slack", "", "{}"}, {"alerts/strange", "", "{}"}}, nil},

		{"a node joins", []did{{"nodes/n5", "", `{"instance":"i5","state":"ready"}`}}, []string{"node joined by=n5 state=ready node=n5 detail=instance i5"}},
		{"a node tells its load", []did{{"nodes/n1", `{"state":"ready","running":3,"clock":"2026-11-20T12:00:00Z"}`, `{"state":"ready","running":4,"clock":"2026-11-20T12:00:05Z"}`}}, nil},
		{"a node drains", []did{{"nodes/n1", `{"state":"ready"}`, `{"state":"draining"}`}}, []string{"node changed by=n1 state=draining was=ready node=n1 detail=state: ready → draining"}},
		{"somebody drains a node", []did{{"nodes/n1", `{"state":"ready"}`, `{"state":"draining","state_by":{"subject":"ann"}}`}}, []string{"node changed by=ann state=draining was=ready node=n1 detail=state: ready → draining"}},
		{"a node that somebody cordoned reloads", []did{{"nodes/n1", `{"state":"cordoned","state_by":{"subject":"ann"}}`, `{"state":"cordoned","state_by":{"subject":"ann"},"ineligible":"clock"}`}}, []string{"node changed by=n1 state=cordoned node=n1 detail=ineligible: – → clock"}},
		{"a node is ineligible", []did{{"nodes/n1", `{"state":"ready"}`, `{"state":"ready","ineligible":"clock","slots":4}`}}, []string{"node changed by=n1 state=ready node=n1 detail=ineligible: – → clock; slots: 0 → 4"}},
		{"a node goes", []did{{"nodes/n1", `{"state":"draining"}`, ""}}, []string{"node left was=draining node=n1"}},
		{"a leader goes", []did{{"leader/a", "boss", ""}}, []string{"cluster leader by=next was=boss node=next"}},
		{"a candidate comes", []did{{"leader/c", "", "third"}}, nil},
		{"a leader confirms", []did{{"leader/a", "boss", "boss"}}, nil},
		{"a cluster is made", []did{{"cluster", "", `{"shards":8}`}}, []string{"cluster made detail=8 shards"}},
		{"lost_after", []did{{"cluster", `{"epoch":1}`, `{"epoch":1,"lost_after":"30s"}`}}, []string{"cluster changed detail=lost_after: 2m → 30s"}},
		{"ledger", []did{{"cluster", `{"epoch":1}`, `{"epoch":1,"ledger":"0s"}`}}, []string{"cluster changed detail=ledger: 720h → 0s"}},
		{"a limit of ledgers", []did{{"cluster", `{"epoch":1,"changed_by":{"subject":"ann"}}`, `{"epoch":1,"ledger_limit":"24h","ledger_limit_since":"2026-11-20T12:00:00Z","changed_by":{"subject":"n1"},"change":"etcd uses 66 % of its quota"}`}},
			[]string{"cluster changed by=n1 detail=ledger limit: – → 24h; etcd uses 66 % of its quota"}},
		{"an epoch", []did{{"cluster", `{"epoch":1}`, `{"epoch":2,"catch_up_rate":5}`}}, []string{"cluster changed detail=epoch: 1 → 2; catch-up rate: 100 → 5"}},
		{"a setting", []did{{"cluster", `{"epoch":1}`, `{"epoch":1,"catch_up_rate":5,"changed_by":{"subject":"ann"},"changed_at":"2026-11-20T12:00:00Z"}`}}, []string{"cluster changed by=ann detail=catch-up rate: 100 → 5"}},
		{"a member of etcd", []did{{"cluster", `{"changed_by":{"subject":"ann"},"changed_at":"2026-11-20T12:00:00Z"}`, `{"changed_by":{"subject":"ann"},"changed_at":"2026-11-20T13:00:00Z","change":"etcd member n4 added"}`}},
			[]string{"cluster changed by=ann detail=etcd member n4 added"}},
		{"a setting by an older version", []did{{"cluster", `{"changed_by":{"subject":"ann"},"changed_at":"2026-11-20T12:00:00Z","change":"x"}`, `{"catch_up_rate":5,"changed_by":{"subject":"ann"},"changed_at":"2026-11-20T12:00:00Z","change":"x"}`}},
			[]string{"cluster changed detail=catch-up rate: 100 → 5"}},
		{"a freeze", []did{{"freezes", "", `{"holding":[{"namespace":"ops","since":"2026-11-20T12:00:00Z","by":{"subject":"ann"},"reason":"move"}]}`}}, []string{"cluster frozen by=ann in=ops reason=move"}},
		{"another, and the end of one", []did{{"freezes", `{"holding":[{"namespace":"ops","since":"2026-11-20T12:00:00Z","by":{"subject":"ann"}}]}`,
			`{"holding":[{"since":"2026-11-20T13:00:00Z","by":{"subject":"bob"}}],"past":[{"namespace":"ops","since":"2026-11-20T12:00:00Z","by":{"subject":"ann"},"ended":"2026-11-20T13:00:00Z","ended_by":{"subject":"eve"}}]}`}},
			[]string{"cluster frozen by=bob", "cluster unfrozen by=eve in=ops"}},
	}
	keys, err := record.NewKeys("/c")
	if err != nil {
		t.Fatal(err)
	}

	at := func(key, value string, create int64) *mvccpb.KeyValue {
		if value == "" {
			return nil
		}
		return &mvccpb.KeyValue{Key: []byte(keys.Root() + key), Value: []byte(value), CreateRevision: create, ModRevision: 50}
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := New(keys, []*mvccpb.KeyValue{
				at("leader/a", "boss", 9), at("leader/b", "next", 12), at("nodes/n1", `{"state":"ready"}`, 5), at("owners/0003", `{"node":"owner"}`, 20),
			})
			var changes []Change
			for _, d := range tt.did {
				create := int64(10)

				switch {
				case d.Before == "":
					create = 50
				case d.Key == "leader/a":
					create = 9
				}

				changes = append(changes, Change{keys.Root() + d.Key, at(d.Key, d.Before, create), at(d.Key, d.After, create)})
			}

			var got []string
			for i, e := range tr.Translate(50, changes) {
				if e.Revision != 50 || e.ID != fmt.Sprintf("50.%d", i+1) {
					t.Errorf("event %d: id %q at %d", i, e.ID, e.Revision)
				}
				got = append(got, story(e))
			}

			if fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(tt.want, "\n  "))
			}
		})
	}
}

// A change without a time in its record has the latest clock that a node had announced before it.
func TestTranslator_TimeOfChangesWithoutOne(t *testing.T) {
	keys, err := record.NewKeys("/c")
	if err != nil {
		t.Fatal(err)
	}
	pair := func(key, value string) *mvccpb.KeyValue {
		if value == "" {
			return nil
		}
		return &mvccpb.KeyValue{Key: []byte(keys.Root() + key), Value: []byte(value)}
	}
	change := func(key, before, after string) []Change {
		return []Change{{Key: keys.Root() + key, Before: pair(key, before), After: pair(key, after)}}
	}
	node := func(clock string) string {
		return `{"name":"n1","state":"active","clock":"2026-11-20T12:00:` + clock + `Z"}`
	}

	all := []*mvccpb.KeyValue{pair("nodes/n1", node("05")), pair("nodes/n2", node("03"))}
	early, late := New(keys, all), New(keys, []*mvccpb.KeyValue{pair("nodes/n1", node("10")), pair("nodes/n2", node("03"))})
	if got := early.Translate(7, change("nodes/n1", node("05"), node("10"))); len(got) != 0 {
		t.Errorf("a clock is an event: %v", got)
	}

	// The two readers began at different revisions.
	for _, tr := range []*Translator{early, late} {
		waiting := strings.Replace(waits, `"overlap"`, `"no_matching_node"`, 1)
		got := tr.Translate(8, change(inQueue, waits, waiting))
		if len(got) != 1 || got[0].Action != task.ActionWaiting || got[0].Time.Format(time.TimeOnly) != "12:00:10" || !got[0].Approximate {
			t.Errorf("a run waits: %+v", got)
		}

		got = tr.Translate(9, change("nodes/n1", node("10"), ""))
		if len(got) != 1 || got[0].Action != task.ActionLeft || got[0].Time.Format(time.TimeOnly) != "12:00:10" || !got[0].Approximate {
			t.Errorf("a node leaves: %+v", got)
		}

		got = tr.Translate(10, change(inHistory, "", strings.Replace(skipped, "{", `{"ended_at":"2026-11-20T12:00:20Z",`, 1)))
		if len(got) != 1 || got[0].Approximate || got[0].Time.Format(time.TimeOnly) != "12:00:20" {
			t.Errorf("a tick is skipped: %+v", got)
		}
	}
}
