package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/task"
)

// The start and --check-config reject keys and passwords that all users can read.
func TestConfig_RefusesSecretsThatOthersCanRead(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	file := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte("secret\n"), 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}

		return path
	}
	readable, private := file("readable", 0o644), file("private", 0o600)

	for field, set := range map[string]func(c *Config, path string){
		"tls_key":            func(c *Config, path string) { c.TLSKey = path },
		"etcd_key":           func(c *Config, path string) { c.EtcdKey = path },
		"etcd_peer_key":      func(c *Config, path string) { c.EtcdPeerKey = path },
		"etcd_password_file": func(c *Config, path string) { c.EtcdPasswordFile = path },
	} {
		var open, closed Config
		set(&open, readable)
		set(&closed, private)

		var fault *task.Error
		if err := open.validateSecretFiles(); !errors.As(err, &fault) || fault.Field != field {
			t.Errorf("%s that all can read: %v", field, err)
		}
		if err := closed.validateSecretFiles(); err != nil {
			t.Errorf("%s that only its owner can read: %v", field, err)
		}
	}

	for mode, want := range map[os.FileMode]bool{0o644: false, 0o640: true, 0o600: true} {
		path := file("agent.yaml", mode)
		if err := os.WriteFile(path, []byte("etcd_password: hidden\n"), mode); err != nil {
			t.Fatal(err)
		}

		_, err := loadConfig(path, pflag.NewFlagSet("agent", pflag.ContinueOnError))
		if (err == nil) != want {
			t.Errorf("a file of mode %04o with a password: %v", mode, err)
		}
		if err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("the error has the password: %v", err)
		}
	}
}
