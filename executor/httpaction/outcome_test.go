package httpaction

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/task"
)

// TestResultOf is the table of what is known after an attempt without a complete response.
func TestResultOf(t *testing.T) {
	const (
		unwritten  = "unwritten"
		repeatable = "repeatable"
		once       = "once" // written, and not repeatable
	)
	kinds := map[string]failure{
		"network": {kind: kindNetwork}, "timeout": {kind: kindTimeout}, "policy": {kind: kindPolicy}, "url": {kind: kindURL}, "secret": {kind: kindSecret}, "tls": {kind: kindTLS},
		"host": {kind: kindHost}, "too late": {kind: kindTooLate}, "no rules": {kind: kindNoRules}, "cancel": {kind: kindKilled, cause: process.CauseCancel},
		"shutdown": {kind: kindKilled, cause: process.CauseShutdown}, "silent": {kind: kindKilled, cause: process.CauseSilent}, "gone": {kind: kindKilled, cause: process.CauseGone},
	}

	const unanswered = "lost unanswered"
	want := map[string]map[string]string{
		"network":  {unwritten: "failed unsent free", repeatable: "failed unanswered", once: unanswered},
		"timeout":  {unwritten: "failed unsent free", repeatable: "timed_out unanswered", once: unanswered},
		"policy":   {unwritten: "failed policy", repeatable: "failed policy", once: unanswered},
		"url":      {unwritten: "failed url", repeatable: "failed url", once: unanswered},
		"secret":   {unwritten: "failed secret", repeatable: "failed secret", once: unanswered},
		"tls":      {unwritten: "failed tls", repeatable: "failed tls", once: unanswered},
		"host":     {unwritten: "failed host", repeatable: "failed host", once: unanswered},
		"too late": {unwritten: "not started", repeatable: "failed unanswered", once: unanswered},
		"no rules": {unwritten: "not started, hand back", repeatable: "failed unanswered", once: unanswered},
		"cancel":   {unwritten: "not started", repeatable: "cancelled cancelled_by_user", once: "cancelled cancelled_by_user"},
		"shutdown": {unwritten: "not started", repeatable: "failed daemon_stopped", once: "lost daemon_stopped"},
		"silent":   {unwritten: "not started", repeatable: "lost node_lost", once: "lost node_lost"},
		"gone":     {unwritten: "not started", repeatable: "lost node_lost", once: "lost node_lost"},
	}

	for name, f := range kinds {
		for _, known := range []string{unwritten, repeatable, once} {
			f.message = "why"
			r := resultOf(&f, attemptFacts{written: known != unwritten, repeatable: known == repeatable})

			got := string(r.State) + " " + r.Reason
			if r.Unsent {
				got += " free"
			}
			if r.NotStarted {
				got = "not started"
				if r.HandBack {
					got += ", hand back"
				}
			}

			if got != want[name][known] {
				t.Errorf("%s, %s: %s, want %s", name, known, got, want[name][known])
			}
			if r.State == task.Lost != strings.Contains(r.Message, unknownFate) && f.kind != kindKilled {
				t.Errorf("%s, %s: message %q", name, known, r.Message)
			}
			if reason, ok := task.ReasonOf(r.Reason); !r.NotStarted && (!ok || !reason.Explains(r.State)) {
				t.Errorf("%s, %s: reason %s does not explain %s", name, known, r.Reason, r.State)
			}
		}
	}
}

func TestEffectiveTimeout(t *testing.T) {
	for _, tt := range []struct {
		timeout task.Duration
		most    time.Duration
		want    time.Duration
	}{
		{0, 0, 30 * time.Second}, {task.Duration(time.Second), 0, time.Second}, {task.Duration(24 * time.Hour), 0, time.Hour}, {0, 5 * time.Second, 5 * time.Second},
		{task.Duration(time.Second), 5 * time.Second, time.Second},
	} {
		a, _ := newAttempt(task.HTTP{})
		a.Timeout = tt.timeout
		if got := effectiveTimeout(&a, Rules{Timeout: tt.most}); got != tt.want {
			t.Errorf("timeout %s, at most %s: %s, want %s", tt.timeout, tt.most, got, tt.want)
		}
	}
}

func TestDescribeError_IsClean(t *testing.T) {
	if got := cleanText("a\x1b[31m\r\nb\xff" + strings.Repeat("x", 1000)); len(got) > maxErrorBytes+5 || strings.ContainsAny(got, "\x1b\r\n") || !strings.HasPrefix(got, "a [31m  b\uFFFDx") {
		t.Errorf("%q", got)
	}
}

// An attempt whose own settings may be the reason does not say that its target is down.
func TestRunAttempt_TellsWhatItSaysAboutItsTarget(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections in the kernel, without a TLS handshake
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()

	server := newTLSServer(t)
	server.config.ClientAuth = tls.RequireAnyClientCert
	server.config.MaxVersion = tls.VersionTLS12 // in 1.3 the alert follows the handshake
	strict := newProbeTLS(t, server.config)

	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()

	r := newRunner(t, func(c *Config) { c.Secrets = secretsOf(map[string]map[string]string{"default/api": {"ca": server.ca}}) })
	for _, tt := range []struct {
		h       task.HTTP
		unknown bool
	}{
		{task.HTTP{URL: "https://" + silent.Addr().String()}, true},
		{task.HTTP{URL: strict.url + "/ok", TLS: &task.HTTPTLS{CA: "secret:api/ca"}}, true},
		{task.HTTP{URL: "http://" + closed.Addr().String()}, false},
	} {
		a, _ := newAttempt(tt.h)
		a.Timeout = task.Duration(300 * time.Millisecond)
		if tt.h.TLS != nil {
			a.Timeout = task.Duration(time.Minute)
		}

		res := r.RunAttempt(a, process.NewOrders())
		if !res.Unsent || res.TargetUnknown != tt.unknown {
			t.Errorf("%s: unsent %v, unknown %v, %q", tt.h.URL, res.Unsent, res.TargetUnknown, res.Message)
		}
	}
}

func TestDescribeError_IsPlain(t *testing.T) {
	const broken = "net/http: HTTP/1.x transport connection broken: "

	a := &attempt{}
	for text, want := range map[string]string{
		broken + `malformed HTTP status code "this"`:                               `the response is not valid HTTP: malformed HTTP status code "this"`,
		broken + "net/http: server response headers exceeded 65536 bytes; aborted": "the headers of the response are larger than 64Ki",
		"net/http: server response headers exceeded 65536 bytes; aborted":          "the headers of the response are larger than 64Ki",
		"invalid byte in chunk length":                                             "the response is not valid HTTP: invalid byte in chunk length",
		"gzip: invalid header":                                                     "gzip: invalid header",
	} {
		if got := a.describeError(errors.New(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
