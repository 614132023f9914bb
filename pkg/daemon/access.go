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

// etcdAccess describes how to connect to an etcd that is not embedded. The guardian needs it
// to write when its daemon is dead. It receives it on its standard input, because other users can read command
// lines, and environments are inherited.
type etcdAccess struct {
	Endpoints    []string    `json:"endpoints"`
	User         string      `json:"user"`
	Password     string      `json:"password"`
	PasswordFile string      `json:"password_file"`
	Files        certs.Files `json:"files"`
	Prefix       string      `json:"prefix"`
}

// etcdAccess returns the access from the settings.
func (c *Config) etcdAccess() etcdAccess {
	return etcdAccess{
		Endpoints: c.EtcdEndpoints, User: c.EtcdUser, Password: c.EtcdPassword, PasswordFile: c.EtcdPasswordFile,
		Files: certs.Files{Cert: c.EtcdCert, Key: c.EtcdKey, CA: c.EtcdCA}, Prefix: c.Prefix,
	}
}

// etcdAccessJSON returns the access as JSON, or nil with an embedded etcd. That dies with the daemon, and other
// members have no port for clients.
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

// clientConfig returns the configuration of a client. files are the TLS files, already opened; nil means none.
func (a etcdAccess) clientConfig(files *certs.Source, log *zap.Logger) kv.Config {
	c := kv.Config{Endpoints: a.Endpoints, Username: a.User, Password: a.Password, PasswordFile: a.PasswordFile, Logger: log}
	if files != nil {
		c.TLS = files.Client
	}
	return c
}

// dialEtcd connects to etcd with the current contents of the TLS files.
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

// secretVariables are environment variables with secrets that the guardian does not need.
var secretVariables = []string{"CARILLON_ETCD_PASSWORD", "CARILLON_TOKEN"}

// withoutSecrets returns an environment without secretVariables.
func withoutSecrets(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(secretVariables, name)
	})
}
