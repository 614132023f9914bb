package task

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// receiverDoc returns the document of a receiver with more fields.
func receiverDoc(action, fields string) string {
	if fields != "" {
		fields = "," + fields
	}
	return `{"name": "slack", "namespace": "ops", "receiver": {}, "action": ` + action + fields + `}`
}

const (
	aRequest = `{"http": {"url": "https://a"}}`
	aProgram = `{"process": {"command": ["true"]}}`
)

func TestDecodeSpec_ReceiverHasItsOwnDefaults(t *testing.T) {
	for action, timeout := range map[string]Duration{aRequest: 0, aProgram: Duration(time.Minute), `{"noop": {}}`: Duration(time.Minute)} {
		s, err := DecodeSpec([]byte(receiverDoc(action, `"retry": {"backoff": "1s"}, "history": {"keep": 80}`)))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", action, err)
		}

		want := ReceiverDefaults(s.Action)
		want.Name, want.Namespace, want.Action = "slack", "ops", s.Action
		want.Retry.Backoff, want.History.Keep = Duration(time.Second), 80
		if !reflect.DeepEqual(s, want) {
			t.Errorf("%s: read %+v, want %+v", action, s, want)
		}
		if s.Timeout != timeout || s.Overlap != OverlapAllow || s.MaxActive != 20 || s.Retry.Attempts != 4 || len(s.Retry.On) != 3 || s.Schedule[0] != "@manual" {
			t.Errorf("%s: %+v", action, s)
		}
		if s.Action.HTTP != nil && s.Action.HTTP.EffectiveUnsentFor() != 0 {
			t.Errorf("unsent_for is %s", s.Action.HTTP.EffectiveUnsentFor())
		}
	}
}

// What is written is read as the same receiver, although zero values are not written and a receiver has other defaults.
func TestDecodeSpec_ReceiverIsReadAsItWasWritten(t *testing.T) {
	for _, fields := range []string{"", `"timeout": "10s", "max_active": 1`, `"retry": {"attempts": 1, "max_backoff": "0s"}, "alerts": {"notify": ["mail"], "failures": 0}`} {
		for _, action := range []string{aRequest, aProgram} {
			s, err := DecodeSpec([]byte(receiverDoc(action, fields)))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(); err != nil {
				t.Fatalf("%s: %v", fields, err)
			}

			b, _ := json.Marshal(s)
			if again, err := DecodeSpec(b); err != nil || !reflect.DeepEqual(again, s) {
				t.Errorf("%s is read as %+v, want %+v: %v", b, again, s, err)
			}
		}
	}
}

func TestValidate_Receiver(t *testing.T) {
	for fields, want := range map[string]string{
		`"schedule": "@hourly"`:                   `schedule: "@hourly": a task with receiver has only messages; use @manual, or omit this field`,
		`"target": {"count": "all"}`:              "target: several parts: a task with receiver requires one",
		`"target": {"parts": 2}`:                  "target: several parts",
		`"shadow": true`:                          "shadow: true: a task with receiver requires false",
		`"pause_after_failures": 2`:               "pause_after_failures: 2: a task with receiver must not pause",
		`"overlap": "skip"`:                       "overlap: skip: a task with receiver requires allow",
		`"max_active": 0`:                         "max_active: 0: a task with receiver requires 1 to 20",
		`"max_active": 21`:                        "max_active: 21",
		`"timeout": "6m"`:                         "timeout: 6m: a task with receiver requires a limit of at most 5m",
		`"timeout": "0s"`:                         "timeout: 0s",
		`"retry": {"attempts": 5}`:                "retry.attempts: 5: a task with receiver requires at most 4",
		`"retry": {"max_backoff": "2m"}`:          "retry.max_backoff: 2m",
		`"retry": {"on": ["failed", "lost"]}`:     "retry.on: [failed lost]: a task with receiver requires timed_out too",
		`"retry": {"exit_codes": [75]}`:           "retry.exit_codes: [75]",
		`"history": {"keep": 49}`:                 "history.keep: 49: a task with receiver requires at least 50",
		`"history": {"record": "failures"}`:       "history.record: failures",
		`"receiver": {"repeat": "30m"}`:           "receiver.repeat: 30m is neither 0s nor at least 1h",
		`"receiver": {"from": ["Shop"]}`:          `receiver.from[0]: "Shop": use a-z`,
		`"receiver": {"for": "25h"}`:              "receiver.for: 25h is not between 0s and 24h",
		`"alerts": {"notify": ["slack"]}`:         `alerts.notify[0]: "slack" is the task itself`,
		`"alerts": {"notify": ["a","ops/slack"]}`: `alerts.notify[1]: "ops/slack" is the task itself`,
	} {
		doc := receiverDoc(aProgram, fields)
		if strings.HasPrefix(fields, `"receiver"`) {
			doc = strings.Replace(doc, `"receiver": {}, `, "", 1)
		}

		s, err := DecodeSpec([]byte(doc))
		if err != nil {
			t.Fatalf("%s: %v", fields, err)
		}
		if err := s.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", fields, err, want)
		}
	}
}

func TestValidate_RequestOfAReceiver(t *testing.T) {
	s, err := DecodeSpec([]byte(receiverDoc(`{"http": {"url": "https://a", "unsent_for": "1m"}}`, "")))
	if err != nil {
		t.Fatal(err)
	}

	want := "action.http.unsent_for: 1m: a task with receiver requires 0s"
	if err := s.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestValidate_Alerts(t *testing.T) {
	for fields, want := range map[string]string{
		`"alerts": {}`: "",
		`"alerts": {"notify": ["slack", "ops/slack"], "failures": 20, "success_within": "26h", "success_by": "0 6 * * *", "output": true}`: "",
		`"alerts": {"failures": 21}`:                                                                          "alerts.failures: 21 is more than history.keep, 20",
		`"alerts": {"failures": 101}, "history": {"keep": 200}`:                                               "alerts.failures: 101 is not between 0 and 100",
		`"alerts": {"failures": -1}`:                                                                          "alerts.failures: -1 is not between",
		`"alerts": {"success_within": "1s"}`:                                                                  "alerts.success_within: 1s is not between 1m",
		`"alerts": {"notify": ["Slack"]}`:                                                                     `alerts.notify[0]: "Slack": use a-z`,
		`"alerts": {"notify": ["a", "ops/"]}`:                                                                 "alerts.notify[1]: is required",
		`"alerts": {"notify": ["a/b/c"]}`:                                                                     `alerts.notify[0]: "b/c": use a-z`,
		`"alerts": {"notify": ["a", "a"]}`:                                                                    `alerts.notify[1]: "a" is given twice`,
		`"alerts": {"notify": ["a", "shop/a"]}`:                                                               `alerts.notify[1]: "shop/a" is given twice`,
		`"alerts": {"notify": ["shop/sync"]}`:                                                                 `alerts.notify[0]: "shop/sync" is the task itself`,
		`"alerts": {"notify": ["1","2","3","4","5","6","7","8","9","10","11"]}`:                               "alerts.notify: has 11 elements",
		`"alerts": {}, "history": {"keep": 501}`:                                                              "history.keep: 501 is more than 500, which is the maximum for a task with alerts",
		`"alerts": {"success_within": "1h"}, "history": {"record": "failures"}`:                               "",
		`"alerts": {"success_within": "1h"}, "history": {"record": "failures", "ledger": "0s"}`:               "alerts.success_within: requires history.record: all or a ledger",
		`"alerts": {"success_by": "0 6 * * *"}, "history": {"record": "failures"}, "schedule": "@manual"`:     "alerts.success_by: requires history.record: all for the schedule @manual",
		`"alerts": {"failures": 2}, "history": {"record": "failures", "ledger": "0s"}, "schedule": "@manual"`: "",
	} {
		if !strings.Contains(fields, `"schedule"`) {
			fields += `, "schedule": "@hourly"`
		}

		s, err := DecodeSpec([]byte(`{"name": "sync", "namespace": "shop", "action": {"noop": {}}, ` + fields + `}`))
		if err != nil {
			t.Fatalf("%s: %v", fields, err)
		}

		got := ""
		if err := s.Validate(); err != nil {
			got = err.Error()
		}
		if want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", fields, got, want)
		}

		if all := s.ValidateAll(); (all == nil) != (want == "") || want != "" && !strings.Contains(all.Error(), want) {
			t.Errorf("%s: all problems: %v", fields, all)
		}
	}
}

// The ticks of a task do not depend on its alerts. An owner of this version decides them even if another version allows more.
func TestEntry_ValidateIgnoresAlerts(t *testing.T) {
	s, err := DecodeSpec([]byte(`{"name": "sync", "namespace": "shop", "action": {"noop": {}}, "schedule": "@hourly", "alerts": {"failures": 30, "notify": ["namespace/name"]}, "receiver": {}}`))
	if err != nil {
		t.Fatal(err)
	}

	if err := NewEntry(Task{Spec: s}, Time{}, Time{}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestSpec_CheckMessageEnv(t *testing.T) {
	for _, c := range []struct {
		receiver *Receiver
		env      map[string]string
		want     string
	}{
		{&Receiver{}, map[string]string{"DAY": "x", "ALERT_TEXT": "prod is down"}, `env: "ALERT_TEXT": in a task with receiver, only Carillon sets variables that begin with ALERT_`},
		{&Receiver{}, map[string]string{"ALERT_": ""}, `env: "ALERT_"`},
		{&Receiver{}, map[string]string{"DAY": "x", "ALERTS": "y"}, ""},
		{nil, map[string]string{"ALERT_TEXT": "x"}, ""},
	} {
		s := Spec{Receiver: c.receiver}
		got := ""
		if err := s.CheckMessageEnv(ManualInput{Env: c.env}); err != nil {
			got = err.Error()
		}
		if c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%v: %q, want %q", c.env, got, c.want)
		}
	}
}

func TestReceiver_Accepts(t *testing.T) {
	r := &Receiver{From: []string{"shop"}}
	for namespace, want := range map[string]bool{"ops": true, "shop": true, "web": false} {
		if r.Accepts("ops", namespace) != want {
			t.Errorf("%s: want %v", namespace, want)
		}
	}

	var none *Receiver
	if none.Accepts("ops", "ops") {
		t.Error("a task that is no receiver accepts alerts")
	}
}
