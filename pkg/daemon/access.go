package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/kv"
)

// etcdAccess is how to reach an etcd that is not embedded. A guardian needs it, to
// write once its daemon is dead, and gets it on its standard input: command lines
// and environments are no secrets.
type etcdAccess struct {
	Endpoints    []string    `json:"endpoints"`
	User         string      `json:"user"`
	Password     string      `json:"password"`
	PasswordFile string      `json:"password_file"`
	Files        certs.Files `json:"files"`
	Prefix       string      `json:"prefix"`
}

func (c *Config) etcdAccess() etcdAccess {
	return etcdAccess{
		Endpoints: c.EtcdEndpoints, User: c.EtcdUser, Password: c.EtcdPassword, PasswordFile: c.EtcdPasswordFile,
		Files: certs.Files{Cert: c.EtcdCert, Key: c.EtcdKey, CA: c.EtcdCA}, Prefix: c.Prefix,
	}
}

// etcdAccessJSON is nil for an embedded etcd: it dies with the daemon, and others open
// no port to clients.
func (c *Config) etcdAccessJSON() json.RawMessage {
	if c.Embedded {
		return nil
	}

	b, err := json.Marshal(c.etcdAccess())
	if err != nil {
		panic(fmt.Sprintf("daemon: encode the access to etcd: %v", err))
	}

	return b
}

// clientConfig is how to dial, with files that are open already; nil: there are none.
func (a etcdAccess) clientConfig(files *certs.Source, log *zap.Logger) kv.Config {
	c := kv.Config{Endpoints: a.Endpoints, Username: a.User, Password: a.Password, PasswordFile: a.PasswordFile, Logger: log}
	if files != nil {
		c.TLS = files.Client
	}
	return c
}

// dialEtcd reaches etcd by what the files hold now.
func (a etcdAccess) dialEtcd(ctx context.Context, log *zap.Logger) (*kv.Client, error) {
	if a.Files == (certs.Files{}) {
		return kv.Dial(ctx, a.clientConfig(nil, log))
	}

	files, err := certs.Open(a.Files)
	if err != nil {
		return nil, err
	}

	return kv.Dial(ctx, a.clientConfig(files, log))
}

// secretVariables are settings that no other process needs to know.
var secretVariables = []string{"CARILLON_ETCD_PASSWORD", "CARILLON_TOKEN"}

// withoutSecrets is an environment without those.
func withoutSecrets(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(secretVariables, name)
	})
}
