package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/task"
)

// A daemon that is not root cannot protect its files from its tasks, which run as the same user.
func TestConfig_KeysAndPolicyNeedAnotherUserThanTheTasks(t *testing.T) {
	executor, scheduler := []string{task.RoleScheduler, task.RoleExecutor}, []string{task.RoleScheduler}

	for _, c := range []struct {
		config Config
		euid   int
		field  string // "": the configuration is valid
	}{
		{Config{Roles: executor, SecretKeys: "/k"}, 1000, "secret_keys"},
		{Config{Roles: executor, Policy: "/p"}, 1000, "policy"},
		{Config{Roles: scheduler, SecretKeys: "/k", Policy: "/p"}, 1000, ""},
		{Config{Roles: executor, SecretKeys: "/k", Policy: "/p"}, 0, ""},
		{Config{Roles: executor}, 1000, ""},
	} {
		err := c.config.validateSeparation(c.euid)

		var fault *task.Error
		if (err == nil) != (c.field == "") || err != nil && (!errors.As(err, &fault) || fault.Field != c.field) {
			t.Errorf("%+v as user %d: %v, want field %q", c.config, c.euid, err, c.field)
		}
	}
}

// A node that creates its own keys has the same ones after a restart, and does not replace keys that it cannot read.
func TestOpenOwnKeys_KeepsWhatThereIs(t *testing.T) {
	dir := t.TempDir()
	file, err := openOwnKeys(dir)
	if err != nil {
		t.Fatal(err)
	}

	before, err := file.Ring()
	if err != nil || len(before.IDs()) != 1 {
		t.Fatalf("keys %v, %v", before.IDs(), err)
	}

	again, err := openOwnKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	if after, err := again.Ring(); err != nil || !slices.Equal(after.IDs(), before.IDs()) {
		t.Errorf("keys %v, %v, want %v", after.IDs(), err, before.IDs())
	}

	if err := os.Chmod(string(file), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openOwnKeys(dir); err == nil {
		t.Error("it used keys that others can read")
	}
}

// Keys that are added, removed or unreadable are announced and logged.
func TestTrust_TellsOfItsKeys(t *testing.T) {
	file := secret.KeyFile(filepath.Join(t.TempDir(), "keys"))
	if _, _, err := file.New(false); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		trust, err := (&Config{SecretKeys: string(file)}).openHostFiles(zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		changes := 0
		go func() { _ = trust.watchFiles(ctx, func() { changes++ }) }()
		synctest.Wait() // after the first check
		step := func(do func() error, want int, says string) {
			t.Helper()
			if err := do(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2*trustEvery + time.Millisecond)
			synctest.Wait()
			if n := logs.FilterMessageSnippet(says).Len(); changes != want || n != 1 {
				t.Errorf("%d changes, want %d; %d times %q", changes, want, n, says)
			}
			logs.TakeAll()
		}
		step(func() error { _, _, err := file.New(false); return err }, 1, "loaded the secret keys")
		step(func() error { return os.Chmod(string(file), 0o644) }, 2, "cannot read the secret keys")
		step(func() error { return os.Chmod(string(file), 0o600) }, 3, "loaded the secret keys")
		if ring, err := file.Ring(); err != nil || !slices.Equal(trust.keyIDs(), ring.IDs()) {
			t.Error(trust.keyIDs(), err)
		}
		end()
		synctest.Wait()
	})
}
