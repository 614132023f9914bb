package daemon

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/carillonhq/carillon/pkg/daemon/systemd"
	"github.com/carillonhq/carillon/pkg/filetrust"
	"github.com/carillonhq/carillon/pkg/internal/manifest"
	"github.com/carillonhq/carillon/pkg/task"
)

// bindFlags defines a flag for each setting. Its default is the value in c, and parsing changes c.
func bindFlags(f *pflag.FlagSet, c *Config) {
	f.StringVar(&c.Name, "name", c.Name, "name of the node, unique in the cluster")
	f.StringVar(&c.DataDir, "data-dir", c.DataDir, "data directory: output, bootstrap token and lock file")
	f.StringVar(&c.Listen, "listen", c.Listen, "address of the API")
	f.StringVar(&c.Advertise, "advertise", c.Advertise, "URL under which other nodes reach the API (default from --listen)")
	f.StringVar(&c.Socket, "socket", c.Socket, "path of a unix socket on which the API also listens; root, the user of the daemon and the group carillon need no token there (default none, or the one that systemd passes on)")
	f.BoolVar(&c.Insecure, "insecure", c.Insecure, "let the API and the metrics listen beyond loopback without TLS")
	f.StringVar(&c.UIOrigin, "ui-origin", c.UIOrigin, "address of the Web UI as browsers know it, such as https://carillon.example.com; needed behind a proxy that ends TLS, and for logins with oidc beyond loopback")
	f.Var((*list)(&c.TrustedProxies), "trusted-proxies", "comma-separated addresses or networks of proxies in front of the API, such as 10.0.0.5: their header X-Forwarded-For names the client")
	f.StringVar(&c.MetricsListen, "metrics-listen", c.MetricsListen, "address at which /metrics and /healthz need no token: without TLS on loopback, else with the certificate of the API (default none)")
	f.StringVar(&c.TLSCert, "tls-cert", c.TLSCert, "PEM certificate of the API, also presented to other nodes")
	f.StringVar(&c.TLSKey, "tls-key", c.TLSKey, "key of --tls-cert")
	f.StringVar(&c.TLSCA, "tls-ca", c.TLSCA, "CA for the certificates of other nodes and clients (default for nodes: the system's)")
	f.StringVar(&c.TLSClientAuth, "tls-client-auth", c.TLSClientAuth, "client certificates for the API: none, optional or require")
	f.Var((*pairs)(&c.Labels), "label", "label of the node, `key=value`; may be repeated")
	f.Var((*list)(&c.Roles), "role", "what the node does: scheduler, executor, api, or several of them; a node without api serves only health checks")
	f.IntVar(&c.Slots, "slots", c.Slots, "attempts that may run at the same time")
	f.IntVar(&c.Weight, "weight", c.Weight, "share of the shards, relative to other nodes")
	f.IntVar(&c.Shards, "shards", c.Shards, "number of shards; used only by the node that creates the cluster")
	f.StringVar(&c.SecretKeys, "secret-keys", c.SecretKeys, "file with the keys that encrypt secrets, see carillon secret key new; only its owner may read it")
	f.StringVar(&c.Policy, "policy", c.Policy, "policy file that restricts what may run on this host; only root may write it")
	f.Var((*list)(&c.HTTPAllow), "http-allow", "comma-separated targets that HTTP actions may reach on this node in addition to the default, such as 127.0.0.1:8080, 127.0.0.0/8 or *.corp")
	f.StringVar(&c.DefaultUser, "default-user", c.DefaultUser, "OS user of tasks that name none (default: nobody if the daemon runs as root, else its own user)")
	f.StringVar(&c.Sendmail, "sendmail", c.Sendmail, "absolute path of the program that sends the output of tasks with output.mail")
	f.BoolVar(&c.Mail, "mail", c.Mail, "send the output of tasks with output.mail")
	f.Var((*list)(&c.MailTo), "mail-to", "comma-separated patterns of the addresses that may get output, such as *@example.com (default all)")
	f.StringVar(&c.AlarmCommand, "alarm-command", c.AlarmCommand, "absolute path of a program that the node runs as --default-user when etcd, its session or the leader has been missing for a minute, every 15 minutes, and when that is over; see CARILLON_ALARM_TEXT")
	f.StringVar(&c.AuditFile, "audit-file", c.AuditFile, "absolute path of a file to which the node also appends all audit records of the cluster, one JSON object a line")
	f.BoolVar(&c.AuditSyslog, "audit-syslog", c.AuditSyslog, "also send all audit records of the cluster to the host's syslog, facility auth")
	f.BoolVar(&c.Embedded, "embedded", c.Embedded, "run an etcd member in this process")
	f.Var((*list)(&c.EtcdEndpoints), "etcd-endpoints", "comma-separated etcd endpoints; host:port means http, or https with --etcd-ca or --etcd-cert")
	f.StringVar(&c.EtcdUser, "etcd-user", c.EtcdUser, "user name for etcd")
	f.StringVar(&c.EtcdPassword, "etcd-password", c.EtcdPassword, "password for etcd; visible to all users of this host, so prefer --etcd-password-file")
	f.StringVar(&c.EtcdPasswordFile, "etcd-password-file", c.EtcdPasswordFile, "file with the password for etcd, read at each login")
	f.StringVar(&c.EtcdCA, "etcd-ca", c.EtcdCA, "CA for the certificates of etcd (default: the system's)")
	f.StringVar(&c.EtcdCert, "etcd-cert", c.EtcdCert, "client certificate for etcd")
	f.StringVar(&c.EtcdKey, "etcd-key", c.EtcdKey, "key of --etcd-cert")
	f.Int64Var(&c.EtcdQuota, "etcd-quota", c.EtcdQuota, "maximum size of the embedded etcd, in bytes (0: 8 GiB)")
	f.Var((*duration)(&c.EventRetention), "event-retention", "minimum time that the embedded etcd keeps events, up to 168h, while at most half of its quota is in use (0s: only the last 30,000 revisions)")
	f.Var((*members)(&c.InitialCluster), "initial-cluster", "peer URLs of all agents with an embedded etcd, including this one: n1=https://h1:2380,n2=…")
	f.StringVar(&c.InitialClusterState, "initial-cluster-state", c.InitialClusterState, "new or existing; existing: a member that was added with cluster member add joins")
	f.StringVar(&c.EtcdListenPeer, "etcd-listen-peer", c.EtcdListenPeer, "URL on which the embedded etcd listens for peers (default: its URL in --initial-cluster)")
	f.BoolVar(&c.InsecurePeers, "insecure-peers", c.InsecurePeers, "no TLS between embedded etcd members: anyone who can reach their ports, including any user of these hosts, can run commands as root")
	f.StringVar(&c.EtcdPeerCert, "etcd-peer-cert", c.EtcdPeerCert, "certificate for traffic between embedded etcd members, as client and as server (default: created by the agents, see cluster join-token)")
	f.StringVar(&c.EtcdPeerKey, "etcd-peer-key", c.EtcdPeerKey, "key of --etcd-peer-cert")
	f.StringVar(&c.EtcdPeerCA, "etcd-peer-ca", c.EtcdPeerCA, "CA for the certificates of the other members")
	f.StringVar(&c.Prefix, "prefix", c.Prefix, "prefix of the cluster's keys in etcd")
	f.Var((*duration)(&c.LeaseTTL), "lease-ttl", "time after which a silent node counts as gone")
	f.Var((*duration)(&c.DrainTimeout), "drain-timeout", "how long running attempts may continue when the node stops")
	f.Int64Var(&c.SpoolLimit, "spool-limit", c.SpoolLimit, "maximum output kept per attempt, in bytes; output.limit of a task can only lower it")
	f.Int64Var(&c.SpoolTotal, "spool-total", c.SpoolTotal, "maximum output kept in total, in bytes")
	f.Var((*duration)(&c.SpoolRetention), "spool-retention", "how long output is kept; output.keep of a task can only lower it")
	f.BoolVar(&c.SpoolCompress, "spool-compress", c.SpoolCompress, "compress the output of ended attempts, except for tasks with output.compress: false")
	f.StringVar(&c.ScratchDir, "scratch-dir", c.ScratchDir, "absolute path; working directories of attempts, including scratch and private /tmp, are in its subdirectory carillon-NAME (default: /var/cache/carillon/NAME for root, else in the data directory)")
	f.Float64Var(&c.MaxLoad, "max-load", c.MaxLoad, "one-minute load average above which the node accepts no runs (0: no limit)")
	f.Var((*byteSize)(&c.MinMemoryFree), "min-memory-free", "free memory below which the node accepts no runs, such as 512Mi (0: no limit)")
	f.Var((*byteSize)(&c.MinDiskFree), "min-disk-free", "free space of the data directory below which the node accepts no runs, such as 10Gi (0: no limit)")
	f.StringVar(&c.Cgroup, "cgroup", c.Cgroup, "where to create control groups for attempts: auto (below that of the agent), off, or a path such as /carillon")
	f.StringVar(&c.LogFormat, "log-format", c.LogFormat, "json or console")
	f.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
}

// loadConfig combines the settings: defaults, then the file (if any), then the
// environment, then the flags that were given. Later ones override earlier ones. The result is not validated.
func loadConfig(file string, given *pflag.FlagSet) (Config, error) {
	cfg := Defaults()

	if file != "" {
		if err := readFile(file, &cfg); err != nil {
			return cfg, err
		}
	}

	// The flag set parses the values of variables, too, so both accept the same syntax.
	all := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	bindFlags(all, &cfg)
	var err error
	set := func(name, value, from string) {
		if err == nil {
			if e := all.Set(name, value); e != nil {
				err = task.Invalid(task.CodeBadValue, from, "%s: %v", task.Quote(value), e)
			}
		}
	}

	all.VisitAll(func(f *pflag.Flag) {
		variable := "CARILLON_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if v, ok := os.LookupEnv(variable); ok && v != "" {
			set(f.Name, v, variable)
		}
	})

	for name, where := range movedSettings {
		variable := "CARILLON_" + strings.ToUpper(name)
		if v, ok := os.LookupEnv(variable); ok && v != "" && err == nil {
			err = task.Invalid(task.CodeUnknown, variable, "%s", where)
		}
	}

	given.Visit(func(f *pflag.Flag) {
		if all.Lookup(f.Name) != nil {
			set(f.Name, f.Value.String(), "--"+f.Name)
		}
	})

	return cfg, err
}

// maxFile is the maximum size of a configuration file in bytes.
const maxFile = 1 << 20

// readFile reads settings from a YAML file. A file with a password must not be readable by other users.
func readFile(path string, cfg *Config) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}

	defer f.Close()

	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if len(b) > maxFile {
		return task.Invalid(task.CodeTooLong, "config", "%s has more than %d bytes", path, maxFile)
	}
	if err := manifest.Document(path, b, cfg); err != nil {
		return explainMoved(err)
	}

	// The file itself is a secret only if it contains a password.
	info, err := f.Stat()
	if err == nil && cfg.EtcdPassword != "" {
		err = filetrust.CheckSecret(info, uint32(os.Geteuid()))
	}

	if err != nil {
		return task.Invalid(task.CodeBadValue, "etcd_password", "%s has a password in it and %v", path, err)
	}

	return nil
}

// movedSettings maps settings that agents no longer have to an explanation of where they are now.
var movedSettings = map[string]string{
	"lost_after": "is not a setting of agents, but of the cluster: take it out, and set it with `carillon cluster set --lost-after DURATION`",
}

// explainMoved replaces the message about an unknown setting by the explanation in movedSettings.
func explainMoved(err error) error {
	var fault *task.Error
	if errors.As(err, &fault) && fault.Code == task.CodeUnknown && movedSettings[fault.Field] != "" {
		fault.Message = movedSettings[fault.Field]
	}
	return err
}

// newLogger returns a logger with the configured format and level.
func newLogger(cfg Config, out io.Writer) *zap.Logger {
	level, err := zapcore.ParseLevel(cfg.LogLevel)
	if err != nil {
		level = zapcore.InfoLevel // Validate rejects invalid levels
	}

	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoder := zapcore.NewJSONEncoder(enc)
	if cfg.LogFormat == "console" {
		enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		enc.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(enc)
	}
	if systemd.IsJournal(out) {
		encoder = systemd.WithPriority(encoder)
	}

	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(out)), level))
}

// list is a setting with several values, separated by commas.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }
func (l *list) Type() string   { return "list" }

// Set replaces the list.
func (l *list) Set(s string) error {
	*l = nil
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			*l = append(*l, part)
		}
	}

	return nil
}

// pairs is a setting of keys and values, such as "a=1,b=2". Each Set adds to it.
type pairs map[string]string

func (p *pairs) Type() string { return "key=value" }
func (p *pairs) String() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(*p)) {
		parts = append(parts, k+"="+(*p)[k])
	}
	return strings.Join(parts, ",")
}

// Set adds pairs.
func (p *pairs) Set(s string) error {
	if *p == nil {
		*p = pairs{}
	}

	for part := range strings.SplitSeq(s, ",") {
		k, v, ok := strings.Cut(part, "=")
		if k = strings.TrimSpace(k); !ok || k == "" {
			return fmt.Errorf("%q is not key=value", part)
		}
		(*p)[k] = strings.TrimSpace(v)
	}

	return nil
}

// duration is a setting in the format of Go's durations.
type duration task.Duration

func (d *duration) String() string { return task.Duration(*d).String() }
func (d *duration) Type() string   { return "duration" }

// Set parses a Go duration.
func (d *duration) Set(s string) error { return (*task.Duration)(d).UnmarshalText([]byte(s)) }

// byteSize is a setting of a size, such as 10Gi.
type byteSize task.Size

func (b *byteSize) String() string { return task.Size(*b).String() }
func (b *byteSize) Type() string   { return "size" }

// Set parses a size.
func (b *byteSize) Set(s string) error { return (*task.Size)(b).UnmarshalText([]byte(s)) }
