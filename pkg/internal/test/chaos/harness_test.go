package chaos_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

const (
	answered = time.Minute            // how long an expected answer may take
	unheard  = 200 * time.Millisecond // how long to wait for an answer that must not come
	eventual = time.Minute
)

// echo returns a link in front of a server that answers each line with itself, and a function that connects through
// it. ask waits for an answer for a given time.
//
// A harness that has no effect finds nothing. The tests here show that the faults have an effect.
func echo(t *testing.T, header string) (*link, func(hello string) (ask func(string, time.Duration) (string, error))) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}

			go func() {
				for s := bufio.NewScanner(c); s.Scan(); {
					fmt.Fprintf(c, "%s\n", s.Text())
				}
			}()
		}
	}()

	k, err := openLink("127.0.0.1:0", l.Addr().String(), header)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(k.close)

	return k, func(hello string) func(string, time.Duration) (string, error) {
		c, err := net.Dial("tcp", k.l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { c.Close() })
		answers := bufio.NewReader(c)
		fmt.Fprint(c, hello)

		for range strings.Count(hello, "\n") {
			if _, err := answers.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}

		return func(line string, most time.Duration) (string, error) {
			if line != "" {
				fmt.Fprintln(c, line)
			}
			c.SetReadDeadline(time.Now().Add(most))
			return answers.ReadString('\n')
		}
	}
}

func TestLink_HoldsBytesBackAndDeliversThemWhenItHeals(t *testing.T) {
	for _, w := range []linkFault{linkCut, linkCutDown, linkCutUp} {
		k, dial := echo(t, "")
		ask := dial("")
		if got, err := ask("before", answered); got != "before\n" {
			t.Fatalf("through an open link came %q, %v", got, err)
		}

		k.set("", w)

		if got, err := ask("meanwhile", unheard); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("through a link with %+v came %q, %v", w, got, err)
		}

		k.set("", linkFault{})

		if got, err := ask("", answered); got != "meanwhile\n" {
			t.Errorf("after %+v came %q, %v", w, got, err)
		}
	}
}

func TestLink_ResetsConnections(t *testing.T) {
	k, dial := echo(t, "")
	ask := dial("")
	k.set("", linkResetting)

	for deadline := time.Now().Add(eventual); ; {
		if _, err := ask("x", unheard); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}

		if time.Now().After(deadline) {
			t.Fatal("the connection lives")
		}
	}
}

func TestLink_TellsCallersApart(t *testing.T) {
	k, dial := echo(t, "X-Server-From")
	a := dial("GET / HTTP/1.1\r\nx-server-from: a\r\n\r\n")
	b := dial("GET / HTTP/1.1\r\nX-Server-From: b\r\n\r\n")
	k.set("a", linkCut)

	if got, err := a("a", unheard); err == nil {
		t.Errorf("a, which is cut off, received %q", got)
	}

	if got, err := b("b", answered); got != "b\n" {
		t.Errorf("b, which is not, received %q, %v", got, err)
	}
}

// controlsOf returns controls that a file determines, as in a daemon, and a function that writes the file.
func controlsOf(t *testing.T) (*controls, func(control)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "control")
	set := func(c control) {
		if err := c.write(path); err != nil {
			t.Fatal(err)
		}
	}

	set(control{})
	c := followControls(path)

	return c, func(next control) {
		set(next)
		ctx, cancel := context.WithTimeout(t.Context(), eventual)
		defer cancel()

		if !c.until(ctx.Done(), func(now control) bool { return now == next }) {
			t.Fatal("the control file is not read")
		}
	}
}

func TestLossyKV_LosesAnswersAndDelaysWrites(t *testing.T) {
	client := kvtest.Start(t)
	controls, set := controlsOf(t)
	lossy := lossyKV{client.KV, controls}
	there := func(key string) bool {
		res, err := client.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return len(res.Kvs) > 0
	}

	set(control{LoseAnswers: 100})

	if _, err := lossy.Put(t.Context(), "lost", ""); !errors.Is(err, errNoAnswer) || !there("lost") {
		t.Errorf("the answer is %v; written: %v", err, there("lost"))
	}

	set(control{DelayWrites: 100, DelayBy: 400 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := lossy.Put(ctx, "late", ""); !errors.Is(err, errNoAnswer) {
		t.Errorf("the answer is %v", err)
	}

	cancel() // the caller has given up, but the write arrives

	for deadline := time.Now().Add(eventual); !there("late"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the late write never came")
		}
	}
}

func TestStallingWatcher_IsSilentUntilItIsToTell(t *testing.T) {
	client := kvtest.Start(t)
	controls, set := controlsOf(t)
	w := stallingWatcher{client.Watcher, controls}
	events := w.Watch(t.Context(), "k")
	set(control{StallWatches: true})

	if _, err := client.Put(t.Context(), "k", ""); err != nil {
		t.Fatal(err)
	}

	select {
	case r := <-events:
		t.Errorf("a stalled watch delivers %+v", r)
	case <-time.After(200 * time.Millisecond):
	}

	set(control{})

	select {
	case r := <-events:
		if len(r.Events) != 1 {
			t.Errorf("it delivers %+v", r)
		}
	case <-time.After(eventual):
		t.Error("it stays silent")
	}
}

func TestDeck_DealsEachFaultBeforeAnyComesAgain(t *testing.T) {
	all := allFaults()
	d := &deck{rnd: rand.New(rand.NewPCG(1, 0)), all: all}
	for range 3 {
		seen := map[*fault]bool{}
		for range all {
			seen[d.next(func(*fault) bool { return true })] = true
		}

		if len(seen) != len(all) {
			t.Errorf("%d of %d faults were dealt", len(seen), len(all))
		}
	}
}

func TestSweep_KillsWhatHasForkedAway(t *testing.T) {
	mark := fmt.Sprintf("test.%d", os.Getpid())
	t.Cleanup(func() { sweep(mark) })

	p, err := launch(filepath.Join(t.TempDir(), "log"), append(os.Environ(), markName+"="+mark), "/bin/sh", "-c", "setsid sleep 300 & exec sleep 300")
	if err != nil {
		t.Fatal(err)
	}

	for deadline := time.Now().Add(eventual); len(find(mark)) < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("found %+v", find(mark))
		}
	}

	sweep(mark)
	<-p.gone

	if left := find(mark); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}
