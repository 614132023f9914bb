package state

import (
	"bytes"
	"runtime"
	"sync"
	"testing"
	"time"
)

func TestTiming_TellsHowOftenATaskTicks(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]uint8{
		`"schedule":"* * * * * *"`:                            60,
		`"schedule":"@every 500ms"`:                           60,
		`"schedule":"@every 9s"`:                              60,
		`"schedule":"@every 25s"`:                             24,
		`"schedule":"* * * * *"`:                              10,
		`"schedule":"* 9-17 * * 1-5"`:                         10,
		`"schedule":["* * * * *","30 * * * * *"]`:             20,
		`"schedule":"@hourly"`:                                1,
		`"schedule":"0 0 29 2 *"`:                             1,
		`"schedule":"@at 2026-03-01T12:00:00Z"`:               1,
		`"schedule":"@at 2020-03-01T12:00:00Z"`:               0,
		`"schedule":"@every 1s after completion"`:             0,
		`"schedule":"@manual"`:                                0,
		`"schedule":"* * * * *","end":"2020-01-01T00:00:00Z"`: 0,
	} {
		timing, err := NewTiming(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}

		if timing.Often != want {
			t.Errorf("%s: %d ticks, want %d", text, timing.Often, want)
		}
	}
}

func BenchmarkNewTiming(b *testing.B) {
	for name, text := range map[string]string{
		"daily": `"schedule":"17 3 * * *","timezone":"Europe/Berlin"`, "seconds": `"schedule":"* * * * * *"`,
		"minutes": `"schedule":"*/5 * * * *"`, "every": `"schedule":"@every 20s"`,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := NewTiming(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestCache_OneValueOfATextForAsLongAsItIsUsed(t *testing.T) {
	t.Parallel()
	s := newTextCache(NewTiming)
	text := []byte(`"schedule":"@hourly","timezone":"UTC"`)

	v, err := s.Get(text)
	if err != nil {
		t.Fatal(err)
	}

	s.forgetUnused(v.Text) // a late cleanup of an earlier value of the same text

	if again, err := s.Get(text); again != v || err != nil {
		t.Errorf("a second value of one text, %v", err)
	}

	if _, err := s.Get([]byte(`"schedule":"never"`)); err == nil || len(s.byText) != 1 {
		t.Errorf("what cannot be read: %v; kept are %d", err, len(s.byText))
	}

	runtime.KeepAlive(v)

	// A cleanup runs some time after the collection that found its value unused.
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		runtime.GC()

		s.mu.Lock()
		left := len(s.byText)
		s.mu.Unlock()

		if left == 0 {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("%d unused values are still kept", left)
		}
	}
}

func TestShared_TasksWithTheSameLabelsShareThem(t *testing.T) {
	t.Parallel()
	s := NewSharedDefinitions()
	keep20 := []byte(`"kill_grace":"10s","overlap":"skip","missed":{"policy":"latest","grace":"10s","window":"1h","limit":100},` +
		`"retry":{"attempts":1,"backoff":"10s","factor":2,"max_backoff":"5m","jitter":0.2,"on":["failed"]},"target":{"strategy":"auto","count":1},"history":{"keep":20,"record":"all"}`)
	keep30 := bytes.Replace(keep20, []byte("20"), []byte("30"), 1)
	parse := func(fields []byte, labels string) *Policy {
		p, err := s.ParsePolicy(fields, []byte(labels))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}

	a, b := parse(keep20, `{"team":"data"}`), parse(keep30, `{"team":"data"}`)
	if a.Labels != b.Labels || a.Labels.Map()["team"] != "data" || a.PolicyFields == b.PolicyFields {
		t.Errorf("%+v and %+v", a, b)
	}

	if c := parse(keep20, `{"team":"web"}`); c.PolicyFields != a.PolicyFields || c.Labels == a.Labels {
		t.Errorf("%+v and %+v", a, c)
	}

	if parse(keep20, `{"team":"data"}`) != a {
		t.Error("the same fields and labels have two policies")
	}

	if c := parse(keep20, ""); c.Labels != nil || c.Labels.Map() != nil || c.Labels.JSON() != nil || c == a {
		t.Errorf("without labels: %+v", c)
	}

	if _, err := s.ParsePolicy(keep20, []byte(`{"team":1}`)); err == nil {
		t.Error("a number is no label")
	}

	runtime.KeepAlive(a)
	runtime.KeepAlive(b)

	// Unused policies are forgotten some time after a collection.
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		runtime.GC()

		s.policies.mu.Lock()
		left := len(s.policies.byParts)
		s.policies.mu.Unlock()

		if left == 0 {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("%d policies that nobody uses are still kept", left)
		}
	}
}

// Values come and go while other goroutines use them.
func TestCache_ManyAtOnce(t *testing.T) {
	t.Parallel()
	s := newTextCache(NewTiming)
	texts := [][]byte{[]byte(`"schedule":"@hourly"`), []byte(`"schedule":"@daily"`)}
	var wg sync.WaitGroup

	for range 4 {
		wg.Go(func() {
			for i := range 400 {
				text := texts[i/7%2]
				v, err := s.Get(text)
				if err != nil || v.Text != string(text) {
					t.Errorf("of %s: %v, %v", text, v, err)
					return
				}

				if i%40 == 0 {
					runtime.GC()
				}

				if again, _ := s.Get(text); again != v {
					t.Error("two values of one text")
				}

				runtime.KeepAlive(v)
			}
		})
	}

	wg.Wait()
}
