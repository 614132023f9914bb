package kv_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/carillonhq/carillon/pkg/kv"
	"github.com/carillonhq/carillon/pkg/kv/kvtest"
)

// guarded is an etcd with two users: root with the password "root's", and carillon, who has all rights below /c/.
type guarded struct {
	*kvtest.Server
	t    *testing.T
	file string // contains the password of carillon
	root *kv.Client
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{Server: kvtest.StartServer(t), t: t, file: filepath.Join(t.TempDir(), "password")}

	c, ctx := g.Client(), t.Context()
	for _, step := range []func() (any, error){
		func() (any, error) { return c.UserAdd(ctx, "root", "root's") },
		func() (any, error) { return c.UserGrantRole(ctx, "root", "root") },
		func() (any, error) { return c.RoleAdd(ctx, "writer") },
		func() (any, error) {
			return c.RoleGrantPermission(ctx, "writer", "/c/", clientv3.GetPrefixRangeEnd("/c/"), clientv3.PermissionType(clientv3.PermReadWrite))
		},
		func() (any, error) { return c.UserAdd(ctx, "carillon", "first") },
		func() (any, error) { return c.UserGrantRole(ctx, "carillon", "writer") },
		func() (any, error) { return c.AuthEnable(ctx) },
	} {
		if _, err := step(); err != nil {
			t.Fatal(err)
		}
	}

	g.write("first")
	g.root = g.dial(kv.Config{Username: "root", Password: "root's"})

	return g
}

func (g *guarded) write(password string) {
	g.t.Helper()
	if err := os.WriteFile(g.file, []byte(password+"\n"), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

// change changes the password in etcd, which invalidates all tokens of the user.
func (g *guarded) change(password string) {
	g.t.Helper()
	if _, err := g.root.UserChangePassword(g.t.Context(), "carillon", password); err != nil {
		g.t.Fatal(err)
	}
}

func (g *guarded) dial(cfg kv.Config) *kv.Client {
	g.t.Helper()
	cfg.Endpoints = []string{g.Endpoint()}

	c, err := kv.Dial(g.t.Context(), cfg)
	if err != nil {
		g.t.Fatal(err)
	}

	g.t.Cleanup(func() { _ = c.Close() })

	return c
}

// A password is changed in etcd and then in its file. The session and the followed ranges continue, and writes in
// between wait. Ranges that are followed later share streams that were opened with an old token.
//
// Verifies: G51
func TestLogin_SurvivesANewPasswordAndARestart(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	c := g.dial(kv.Config{Username: "carillon", PasswordFile: g.file})
	s := open(t, t.Context(), c, kv.SessionConfig{TTL: 9 * time.Second})
	key, end := kv.Prefix("/c/")
	first := follow(t, c, kv.FollowConfig{Key: key, End: end})
	put(t, c, "/c/a", "1")
	eventually(t, "the first is told", func() bool { return first.value("/c/a") == "1" })

	for n, disturb := range []func(){
		func() {
			g.change("second")
			go func() {
				time.Sleep(300 * time.Millisecond)
				g.write("second")
			}()
		},
		func() { g.Restart() }, // the server loses its tokens
	} {
		renewed := s.LastRenewal()
		disturb()
		value := string(rune('2' + n))
		eventually(t, "a write", func() bool {
			_, err := c.Put(t.Context(), "/c/a", value)
			if err != nil && !kv.Unknown(err) {
				t.Fatalf("refused: %v", err)
			}
			return err == nil
		})

		eventually(t, "what is followed is told on", func() bool { return first.value("/c/a") == value })
		later := follow(t, c, kv.FollowConfig{Key: key, End: end})
		eventually(t, "what is followed later is listed", func() bool { return later.value("/c/a") == value })
		put(t, c, "/c/b", value)
		eventually(t, "what is followed later", func() bool { return later.value("/c/b") == value && first.value("/c/b") == value })
		eventually(t, "the session is renewed", func() bool { return s.LastRenewal().After(renewed) })

		if first.resetCount() != 1 || later.resetCount() != 1 {
			t.Errorf("listed %d and %d times: a watch was not resumed", first.resetCount(), later.resetCount())
		}
	}

	if err := s.Err(); err != nil {
		t.Errorf("the session: %v", err)
	}
}

// A wrong password results in ErrLogin within the deadline of the call, and the write that needed the login is not
// applied.
func TestLogin_SaysThatItIsRefused(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	c := g.dial(kv.Config{Username: "carillon", Password: "wrong", CallTimeout: 1500 * time.Millisecond})

	err := refusal(func() error { _, err := c.Put(t.Context(), "/c/a", "1"); return err })
	if !errors.Is(err, kv.ErrLogin) || kv.Unknown(err) {
		t.Errorf("a wrong password: %v", err)
	}

	none := g.dial(kv.Config{Username: "carillon", PasswordFile: filepath.Join(t.TempDir(), "none"), CallTimeout: 500 * time.Millisecond})
	err = refusal(func() error { _, err := none.Get(t.Context(), "/c/a"); return err })
	if !errors.Is(err, kv.ErrLogin) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no password: %v", err)
	}

	right := g.dial(kv.Config{Username: "carillon", PasswordFile: g.file})
	if _, err := right.Put(t.Context(), "/d/a", "1"); !kv.Denied(err) || kv.Unknown(err) {
		t.Errorf("what no role grants: %v", err)
	}

	anybody := g.dial(kv.Config{})
	if _, err := anybody.Get(t.Context(), "/c/a"); !kv.Denied(err) {
		t.Errorf("nobody: %v", err)
	}
}

// refusal returns the error of a refused call. If etcd was too slow to refuse it before its deadline, it makes the
// call again.
func refusal(call func() error) (err error) {
	for range 20 {
		err = call()

		// Either the client detects the deadline, or the server, which then resets the stream.
		tooLate := errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
		if errors.Is(err, kv.ErrLogin) || !tooLate {
			return err
		}
	}

	return err
}

func TestLogin_WorksBeforeThereAreUsers(t *testing.T) {
	t.Parallel()
	s := kvtest.StartServer(t)

	c, err := kv.Dial(t.Context(), kv.Config{Endpoints: []string{s.Endpoint()}, Username: "carillon", Password: "p"})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = c.Close() })
	put(t, c, "k", "v")

	root := s.Client()
	for _, step := range []func() (any, error){
		func() (any, error) { return root.UserAdd(t.Context(), "root", "r") },
		func() (any, error) { return root.UserGrantRole(t.Context(), "root", "root") },
		func() (any, error) { return root.UserAdd(t.Context(), "carillon", "p") },
		func() (any, error) { return root.UserGrantRole(t.Context(), "carillon", "root") },
		func() (any, error) { return root.AuthEnable(t.Context()) },
	} {
		if _, err := step(); err != nil {
			t.Fatal(err)
		}
	}

	put(t, c, "k", "w")
}

func TestReadPassword_TakesOneLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p")

	for text, want := range map[string]string{"a": "a", "a\n": "a", "a b\r\n": "a b", "": "", "\n": "", "a\nb\n": ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		if got, err := kv.ReadPassword(file); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
