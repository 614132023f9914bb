package daemon

import (
	"cmp"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/carillonhq/carillon/pkg/internal/backup/restore"
	"github.com/carillonhq/carillon/pkg/internal/peerhistory"
	"github.com/carillonhq/carillon/pkg/internal/secret"
)

// embeddedQuota is the quota of the embedded etcd if the settings do not say another one.
const embeddedQuota = 8 << 30

// RestoreHost returns what a restore must know of this host, from the settings of its agent: the file and the environment.
func RestoreHost(file string) (restore.Host, error) {
	cfg, err := loadConfig(file, pflag.NewFlagSet("restore", pflag.ContinueOnError))
	if err == nil {
		err = cfg.Validate()
	}
	if err != nil {
		return restore.Host{}, fmt.Errorf("settings of the agent: %w", err)
	}

	sources, err := cfg.securityOf()
	if err != nil {
		return restore.Host{}, fmt.Errorf("settings of the agent: %w", err)
	}

	tls := nodeTLS{dial: peerhistory.Dial, secured: sources.api}
	host := restore.Host{
		Node: cfg.Name, DataDir: cfg.DataDir, Prefix: cfg.Prefix, Embedded: cfg.Embedded, Members: cfg.InitialCluster, AuditFile: cfg.AuditFile,
		Asker: peerhistory.NewAsker(tls.dial, tls.dialTLS()),
	}
	if cfg.Embedded {
		host.Quota = cmp.Or(cfg.EtcdQuota, embeddedQuota)
	}

	if cfg.SecretKeys != "" {
		ring, err := secret.KeyFile(cfg.SecretKeys).Ring()
		if err != nil {
			return host, fmt.Errorf("secret_keys: %w", err)
		}
		host.SecretKeys = ring.IDs()
	}

	return host, nil
}
