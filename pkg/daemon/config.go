package daemon

import (
	"cmp"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/daemon/unixsocket"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Config is what an agent can be told. Flags win over CARILLON_* variables,
// which win over the file. The JSON names are those of the file, in YAML.
type Config struct {
	Name      string            `json:"name"`
	DataDir   string            `json:"data_dir"`
	Listen    string            `json:"listen"`    // host:port of the API
	Advertise string            `json:"advertise"` // URL under which other nodes reach it
	Socket    string            `json:"socket"`    // path of the API's unix socket; "": none
	Insecure  bool              `json:"insecure"`  // the API listens beyond loopback without TLS
	Labels    map[string]string `json:"labels"`
	Roles     []string          `json:"roles"`
	Slots     int               `json:"slots"`
	Weight    int               `json:"weight"`
	Shards    int               `json:"shards"` // of a cluster that does not exist yet

	// PEM files, taken anew when they are replaced. With certificate and key the API
	// speaks TLS. The CA is who has signed the certificates of other nodes, and of
	// clients; without it, the system's CAs count for nodes.
	TLSCert       string `json:"tls_cert"`
	TLSKey        string `json:"tls_key"`
	TLSCA         string `json:"tls_ca"`
	TLSClientAuth string `json:"tls_client_auth"` // what clients of the API show: none, optional or require

	// Files of the host's administrator, taken as they are at each use.
	SecretKeys string `json:"secret_keys"` // keys under which secrets are encrypted; 0600
	Policy     string `json:"policy"`      // what may run here, whatever tasks say; root's

	Embedded      bool     `json:"embedded"` // run an etcd in this process
	EtcdEndpoints []string `json:"etcd_endpoints"`
	EtcdUser      string   `json:"etcd_user"`
	EtcdPassword  string   `json:"etcd_password"`
	// EtcdPasswordFile is read at each log-in: a new password takes effect when etcd
	// refuses the former.
	EtcdPasswordFile string `json:"etcd_password_file"`
	EtcdCA           string `json:"etcd_ca"` // PEM files, for https endpoints
	EtcdCert         string `json:"etcd_cert"`
	EtcdKey          string `json:"etcd_key"`
	EtcdQuota        int64  `json:"etcd_quota"` // bytes that the embedded etcd may grow to; 0: its default, 8 GiB
	Prefix           string `json:"prefix"`

	// EventRetention is how long the embedded etcd keeps revisions, and so events, at
	// least; 0: the last 30,000 revisions, which it keeps in any case.
	EventRetention task.Duration `json:"event_retention"`

	// The embedded etcd as one member of several, which are other agents'.
	InitialCluster      map[string]string `json:"initial_cluster"`       // their URLs for each other, by name, the own one among them
	InitialClusterState string            `json:"initial_cluster_state"` // new, or existing: it has been added
	EtcdListenPeer      string            `json:"etcd_listen_peer"`      // URL; default: the own one
	InsecurePeers       bool              `json:"insecure_peers"`        // no TLS between members: whoever reaches their ports is root
	EtcdPeerCert        string            `json:"etcd_peer_cert"`        // PEM files: all three, or none: then the agents make them
	EtcdPeerKey         string            `json:"etcd_peer_key"`
	EtcdPeerCA          string            `json:"etcd_peer_ca"`

	LeaseTTL     task.Duration `json:"lease_ttl"`
	DrainTimeout task.Duration `json:"drain_timeout"`

	SpoolLimit     int64         `json:"spool_limit"`     // bytes of output kept per attempt
	SpoolTotal     int64         `json:"spool_total"`     // bytes of output kept in all
	SpoolRetention task.Duration `json:"spool_retention"` // age up to which output is kept
	SpoolCompress  bool          `json:"spool_compress"`  // output is compressed when its attempt has ended

	// ScratchDir is where the directories of attempts are, scratch and private /tmp among
	// them, in one of the node's own.
	ScratchDir string `json:"scratch_dir"`
	// Beyond these the node takes no runs; 0: no limit.
	MaxLoad       float64   `json:"max_load"`        // of load1
	MinMemoryFree task.Size `json:"min_memory_free"` // bytes
	MinDiskFree   task.Size `json:"min_disk_free"`   // bytes, in the data directory's file system

	Cgroup string `json:"cgroup"` // where attempts have control groups: auto, off, or the path of one

	LogFormat string `json:"log_format"` // json or console
	LogLevel  string `json:"log_level"`
}

// Defaults is a Config with nothing set by its user.
func Defaults() Config {
	return Config{
		Name: defaultName(), DataDir: "/var/lib/carillon", Listen: "127.0.0.1:7070",
		Roles: []string{task.RoleScheduler, task.RoleExecutor}, Slots: max(16, 8*runtime.NumCPU()), Weight: 1, Shards: 256,
		TLSClientAuth: string(certs.None),
		Prefix:        record.DefaultPrefix, InitialClusterState: clusterNew, LeaseTTL: task.Duration(10 * time.Second),
		DrainTimeout: task.Duration(30 * time.Second), SpoolLimit: 10 << 20, SpoolTotal: 1 << 30,
		SpoolRetention: task.Duration(7 * 24 * time.Hour), SpoolCompress: true, Cgroup: cgroup.Auto, LogFormat: "json", LogLevel: "info",
	}
}

var notInName = regexp.MustCompile(`[^a-z0-9._-]+`)

// defaultName is the host's name, made to fit.
func defaultName() string {
	host, _ := os.Hostname() // without one, there is a name all the same
	name, _, _ := strings.Cut(strings.ToLower(host), ".")
	name = strings.Trim(notInName.ReplaceAllString(name, "-"), "-._")
	return cmp.Or(name, "node")
}

// Validate checks c and fills in what follows from the rest. It returns the
// first fault, as a *task.Error.
func (c *Config) Validate() error {
	if err := task.CheckName("name", c.Name); err != nil {
		return err
	}
	if err := task.CheckLabels("labels", c.Labels); err != nil {
		return err
	}
	if _, err := record.NewKeys(c.Prefix); err != nil {
		return err
	}
	if c.DataDir == "" {
		return task.Invalid(task.CodeRequired, "data_dir", "is required")
	}

	var err error
	if c.DataDir, err = filepath.Abs(c.DataDir); err != nil {
		return task.Invalid(task.CodeBadValue, "data_dir", "%s: %v", task.Quote(c.DataDir), err)
	}
	if err := c.validateScratch(); err != nil {
		return err
	}
	if err := c.validateAddresses(); err != nil {
		return err
	}
	if err := unixsocket.ValidatePath(c.Socket); err != nil {
		return err
	}
	if c.Embedded == (len(c.EtcdEndpoints) > 0) {
		return task.Invalid(task.CodeRequired, "etcd_endpoints", "give either the endpoints of an etcd, or embedded")
	}
	if c.EtcdQuota != 0 && !c.Embedded {
		return task.Invalid(task.CodeBadValue, "etcd_quota", "is for the embedded etcd; of another one, it is set there")
	}
	if c.EventRetention != 0 && !c.Embedded {
		return task.Invalid(task.CodeBadValue, "event_retention", "is for the embedded etcd; another one has --auto-compaction-retention")
	}
	if err := c.validatePeers(); err != nil {
		return err
	}
	if err := c.validateTLS(); err != nil {
		return err
	}
	if len(c.Roles) == 0 {
		return task.Invalid(task.CodeRequired, "roles", "needs at least one of scheduler, executor")
	}

	for _, r := range c.Roles {
		if r != task.RoleScheduler && r != task.RoleExecutor {
			return task.NoneOf(task.CodeBadValue, "roles", r, "scheduler", "executor")
		}
	}

	if err := c.validateSeparation(os.Geteuid()); err != nil {
		return err
	}
	if err := cgroup.CheckSetting(c.Cgroup); err != nil {
		return task.Invalid(task.CodeBadValue, "cgroup", "%s", err)
	}

	return c.validateNumbers()
}

func (c *Config) validateScratch() error {
	if c.ScratchDir == "" {
		return nil
	}
	if !filepath.IsAbs(c.ScratchDir) {
		return task.Invalid(task.CodeBadValue, "scratch_dir", "%s is not an absolute path", task.Quote(c.ScratchDir))
	}

	if c.ScratchDir = filepath.Clean(c.ScratchDir); task.PrivateDir(c.ScratchDir) != "" && os.Geteuid() == 0 {
		return task.Invalid(task.CodeBadValue, "scratch_dir", "%s lies in %s, in whose place attempts may have directories from there",
			task.Quote(c.ScratchDir), task.PrivateDir(c.ScratchDir))
	}

	return nil
}

func (c *Config) validateNumbers() error {
	type bounds struct {
		field     string
		v, lo, hi int64
	}
	ranges := []bounds{
		{"slots", int64(c.Slots), 1, 100_000}, {"weight", int64(c.Weight), 1, 100}, {"shards", int64(c.Shards), 1, 4096},
		{"spool_limit", c.SpoolLimit, 1024, 1 << 40}, {"spool_total", c.SpoolTotal, 1024, 1 << 50},
	}
	if c.EtcdQuota != 0 {
		ranges = append(ranges, bounds{"etcd_quota", c.EtcdQuota, 16 << 20, 1 << 40})
	}

	for _, r := range ranges {
		if r.v < r.lo || r.v > r.hi {
			return task.Invalid(task.CodeOutOfRange, r.field, "%d is not between %d and %d", r.v, r.lo, r.hi)
		}
	}

	if !(c.MaxLoad == 0 || c.MaxLoad >= 0.1 && c.MaxLoad <= 1e5) {
		return task.Invalid(task.CodeOutOfRange, "max_load", "%v is not between 0.1 and 100000, nor 0", c.MaxLoad)
	}

	times := []struct {
		field     string
		v, lo, hi time.Duration
	}{
		{"lease_ttl", c.LeaseTTL.Std(), 2 * time.Second, 10 * time.Minute},
		{"drain_timeout", c.DrainTimeout.Std(), 0, 24 * time.Hour},
		{"event_retention", c.EventRetention.Std(), 0, 7 * 24 * time.Hour},
		{"spool_retention", c.SpoolRetention.Std(), time.Minute, 10 * 365 * 24 * time.Hour},
	}
	for _, r := range times {
		if r.v < r.lo || r.v > r.hi {
			return task.Invalid(task.CodeOutOfRange, r.field, "%s is not between %s and %s", r.v, r.lo, r.hi)
		}
	}

	if !slices.Contains([]string{"json", "console"}, c.LogFormat) {
		return task.NoneOf(task.CodeBadValue, "log_format", c.LogFormat, "json", "console")
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.LogLevel) {
		return task.NoneOf(task.CodeBadValue, "log_level", c.LogLevel, "debug", "info", "warn", "error")
	}

	return nil
}

// validateAddresses keeps an API without TLS on loopback unless told otherwise.
func (c *Config) validateAddresses() error {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil || port == "" {
		return task.Invalid(task.CodeBadValue, "listen", "%s is not host:port", task.Quote(c.Listen))
	}

	if host == "localhost" {
		// The resolver may give localhost another address: what is judged here has to be what the listener binds.
		host = "127.0.0.1"
		c.Listen = net.JoinHostPort(host, port)
	}

	if !isLoopback(host) && !c.Insecure && !c.servesTLS() {
		return task.Invalid(task.CodeBadValue, "listen",
			"%s is reachable from other hosts: give tls_cert and tls_key, listen on 127.0.0.1, or accept the risk with --insecure", task.Quote(c.Listen))
	}

	if c.Advertise == "" {
		return nil
	}

	u, err := url.Parse(c.Advertise)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" {
		return task.Invalid(task.CodeBadValue, "advertise", "%s is not a URL such as %s://10.0.0.7:7070", task.Quote(c.Advertise), c.urlScheme())
	}
	if u.Scheme != c.urlScheme() {
		return task.Invalid(task.CodeBadValue, "advertise", "%s is to be %s://: it is what the API speaks with tls_cert, or without", task.Quote(c.Advertise), c.urlScheme())
	}

	return nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
