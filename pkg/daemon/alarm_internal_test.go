package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/zap"

	"github.com/carillonhq/carillon/executor/proctree"
	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvmem"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// alarmStory is an alarm command in virtual time. Each run is noted with the minutes and seconds since the beginning.
type alarmStory struct {
	*alarmCommand
	began time.Time
	runs  []string
	envs  [][]string
	fails atomic.Bool // whether the command fails
}

func inAlarmStory(t *testing.T, tell func(s *alarmStory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &alarmStory{began: time.Now()}
		s.alarmCommand = &alarmCommand{node: "n1", now: time.Now, log: zap.NewNop()}
		s.run = func(_ context.Context, env []string, _ *proctree.Orphans) ([]byte, error) {
			values := map[string]string{}
			for _, e := range env {
				name, value, _ := strings.Cut(e, "=")
				values[strings.TrimPrefix(name, "CARILLON_ALARM_")] = value
			}
			at := time.Since(s.began)
			s.runs = append(s.runs, fmt.Sprintf("%02d:%02d %s %s", int(at.Minutes()), int(at.Seconds())%60, values["ACTION"], values["PROBLEM"]))
			s.envs = append(s.envs, env)

			if s.fails.Load() {
				return nil, errors.New("exit 1")
			}

			return nil, nil
		}
		stop := startAlarm(t.Context(), s.alarmCommand)
		defer stop()
		tell(s)
	})
}

// pass passes virtual time.
func (s *alarmStory) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (s *alarmStory) expect(t *testing.T, runs ...string) {
	t.Helper()
	if !slices.Equal(s.runs, runs) {
		t.Errorf("after %s: the command ran at %q; want %q", time.Since(s.began), s.runs, runs)
	}
}

func TestAlarm_RunsAtIntervalsAndAtTheEnd(t *testing.T) {
	inAlarmStory(t, func(s *alarmStory) {
		silent := alarmFacts{alarmEtcdSilent, "context deadline exceeded"}
		s.pass(time.Hour + time.Second)
		s.noteStart(silent)
		s.pass(50 * time.Second)
		s.noteStart(alarmFacts{}) // it was short
		s.pass(10 * time.Minute)
		s.expect(t)

		s.began = time.Now()
		s.noteStart(silent)
		s.pass(40 * time.Minute)
		s.expect(t, "00:59 trigger etcd_silent", "15:59 trigger etcd_silent", "30:59 trigger etcd_silent")

		// Its end, if it does not come back within a minute. When etcd answers, the node has no session yet.
		s.noteStart(alarmFacts{})
		s.pass(30 * time.Second)
		s.noteStart(alarmFacts{Problem: alarmNoSession})
		s.pass(30 * time.Second)
		s.noteStart(alarmFacts{})
		s.pass(time.Hour)
		s.expect(t, "00:59 trigger etcd_silent", "15:59 trigger etcd_silent", "30:59 trigger etcd_silent", "42:04 resolve etcd_silent")

		want := []string{"PROBLEM node n1: etcd does not answer, since ", "STILL PROBLEM node n1: ", "STILL PROBLEM node n1: ", "RESOLVED node n1: etcd does not answer, from "}
		for i, env := range s.envs {
			if text := env[3]; !strings.HasPrefix(text, "CARILLON_ALARM_TEXT="+want[i]) {
				t.Errorf("run %d has %q", i, text)
			}
		}
		if text := s.envs[0][3]; !strings.HasSuffix(text, ": context deadline exceeded") {
			t.Errorf("the text has no cause: %q", text)
		}
	})
}

// A problem that comes and goes runs the command no more often than one that stays.
func TestAlarm_LimitsHowOftenItRuns(t *testing.T) {
	inAlarmStory(t, func(s *alarmStory) {
		for range 30 {
			s.noteStart(alarmFacts{Problem: alarmNoLeader})
			s.pass(90 * time.Second)
			s.noteStart(alarmFacts{})
			s.pass(90 * time.Second)
		}

		triggers := 0
		for _, run := range s.runs {
			if strings.Contains(run, "trigger") {
				triggers++
			}
		}
		if len(s.runs) != 2*triggers || triggers < 5 || triggers > 7 {
			t.Errorf("in 90 minutes, the command ran at %q", s.runs)
		}
	})
}

// The network may fail together with etcd.
func TestAlarm_RepeatsRunsThatFail(t *testing.T) {
	inAlarmStory(t, func(s *alarmStory) {
		s.fails.Store(true)
		s.noteStart(alarmFacts{Problem: alarmEtcdFull})
		s.pass(8*time.Minute + 30*time.Second)
		s.fails.Store(false)
		s.pass(30 * time.Minute)
		s.expect(t, "01:00 trigger etcd_full", "02:00 trigger etcd_full", "04:00 trigger etcd_full", "08:00 trigger etcd_full", "16:00 trigger etcd_full", "31:00 trigger etcd_full")
	})
}

func TestAlarm_NamesTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys, err := record.NewKeys("/t")
		if err != nil {
			t.Fatal(err)
		}
		etcd := kvmem.New(kvmem.Config{MinTTL: 1})
		t.Cleanup(etcd.Close)
		client := kvtest.ClientOf(t, etcd)

		// Of the node, only what the alarm checks.
		n := &Node{store: store.New(client, kv.Direct(client), keys), presence: &presence{}}
		n.eligibility = newEligibility(prometheus.NewRegistry(), zap.NewNop(), func() {})
		expect := func(when string, want alarmProblem) {
			t.Helper()
			if found := n.findAlarm(t.Context()); found.Problem != want || want != "" && alarmWords[want] == "" {
				t.Errorf("%s: %+v; want %q", when, found, want)
			}
		}

		expect("without a session", alarmNoSession)
		session, err := kv.OpenSession(t.Context(), client, kv.SessionConfig{TTL: 10 * time.Second, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = session.Close(t.Context()) }()
		n.presence.setSession(session, store.Session{})

		expect("without a leader", alarmNoLeader)
		if _, err := client.Put(t.Context(), keys.Leader()+"1", "n1"); err != nil {
			t.Fatal(err)
		}
		expect("with a leader", "")

		etcd.SetFull(true)
		n.presence.noteWrite(n.store.PutCleared(t.Context(), "i", task.At(time.Now())))
		expect("while etcd is full", alarmEtcdFull)
		etcd.SetFull(false)
		n.presence.noteWrite(n.store.PutCleared(t.Context(), "i", task.At(time.Now())))
		expect("when etcd has space", "")

		n.eligibility.setReason(task.IneligibleRestored, errors.New("restored"))
		expect("after a restore", alarmEtcdRestored)
		n.eligibility.setReason(task.IneligibleRestored, nil)

		etcd.Freeze()
		expect("while etcd does not answer", alarmEtcdSilent)
		etcd.Thaw(true)
		expect("when etcd answers", "")
	})
}

func TestAlarm_KnowsWhatAStartingNodeWaitsFor(t *testing.T) {
	a := &alarmCommand{}
	expect := func(want alarmProblem) {
		t.Helper()
		if facts, _, _ := a.findFacts(t.Context()); facts.Problem != want {
			t.Errorf("%+v; want %q", facts, want)
		}
	}

	expect("")
	a.noteMembers([]string{"n2", "n3"})
	expect(alarmEtcdSilent)
	a.noteMembers(nil)
	expect("")
	a.noteStart(startingAlarm(errors.New("connection refused")))
	expect(alarmEtcdSilent)
	a.noteStart(startingAlarm(rpctypes.ErrNoSpace))
	expect(alarmEtcdFull)
	a.forgetNode()
	expect("")

	var none *alarmCommand // alarm_command is not set
	none.noteMembers(nil)
	none.forgetNode()
	startAlarm(t.Context(), none)()
}
