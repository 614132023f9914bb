package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/carillonhq/carillon/executor/outputmail"
	"github.com/carillonhq/carillon/executor/process"
	"github.com/carillonhq/carillon/pkg/cgroup"
	"github.com/carillonhq/carillon/pkg/daemon/unixsocket"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/internal/oidclogin"
	"github.com/carillonhq/carillon/pkg/policy"
	"github.com/carillonhq/carillon/pkg/store/record"
	"github.com/carillonhq/carillon/pkg/task"
)

// Config holds the settings of an agent. Flags override CARILLON_* variables,
// which override the file. The JSON names are the names of the settings in the YAML file. The help texts of the
// flags describe each setting; the comments here add what they leave out.
type Config struct {
	Name      string            `json:"name"`
	DataDir   string            `json:"data_dir"`
	Listen    string            `json:"listen"`    // host:port of the API
	Advertise string            `json:"advertise"` // URL at which other nodes reach the API
	Socket    string            `json:"socket"`    // path of the API's unix socket; "": none
	Insecure  bool              `json:"insecure"`  // the API and the metrics listen beyond loopback without TLS
	Labels    map[string]string `json:"labels"`
	Roles     []string          `json:"roles"`
	Slots     int               `json:"slots"`
	Weight    int               `json:"weight"`
	Shards    int               `json:"shards"` // used only by the node that creates the cluster

	// PEM files, which are loaded again when they are replaced. With a certificate and a key the API
	// uses TLS. The CA verifies the certificates of other nodes and of
	// clients; without it, the system's CAs verify other nodes.
	TLSCert       string `json:"tls_cert"`
	TLSKey        string `json:"tls_key"`
	TLSCA         string `json:"tls_ca"`
	TLSClientAuth string `json:"tls_client_auth"` // client certificates of the API: none, optional or require

	// UIOrigin is the address of the Web UI as browsers know it, such as https://carillon.example.com; "": that of the node.
	UIOrigin string `json:"ui_origin"`
	// TrustedProxies are the addresses or networks of proxies in front of the node. Only their X-Forwarded-For counts.
	TrustedProxies []string `json:"trusted_proxies"`

	// OIDC are the OpenID Connect providers with which people can sign in. The setting has no flag.
	OIDC []oidclogin.Provider `json:"oidc"`

	// MetricsListen is the host:port at which /metrics and /healthz need no token; "": none.
	MetricsListen string `json:"metrics_listen"`

	// Files of the host's administrator. Their current contents count at each use.
	SecretKeys string `json:"secret_keys"` // keys under which secrets are encrypted; 0600
	Policy     string `json:"policy"`      // restricts what may run here; only root may write it

	// HTTPAllow are targets that HTTP actions may reach on this node although the default refuses them, such as
	// 127.0.0.1:8080. What the policy denies stays denied.
	HTTPAllow []string `json:"http_allow"`

	// DefaultUser is the OS user of tasks that name none. "" is nobody if the daemon is root, and otherwise the
	// daemon's own user.
	DefaultUser string `json:"default_user"`

	// Mails with the output of runs; see output.mail of a task.
	Sendmail string   `json:"sendmail"` // absolute path; it may be absent
	Mail     bool     `json:"mail"`
	MailTo   []string `json:"mail_to"` // patterns of addresses; nil: all

	// AlarmCommand is the absolute path of a program that the node runs as the default user while it can neither fire nor
	// send messages about alerts, and when that is over; "": none.
	AlarmCommand string `json:"alarm_command"`

	// Sinks of audit records, in addition to etcd, which keeps them for 30 days.
	AuditFile   string `json:"audit_file"`   // a file with a JSON object in each line
	AuditSyslog bool   `json:"audit_syslog"` // the host's syslog, facility auth

	Embedded      bool     `json:"embedded"` // run an etcd in this process
	EtcdEndpoints []string `json:"etcd_endpoints"`
	EtcdUser      string   `json:"etcd_user"`
	EtcdPassword  string   `json:"etcd_password"`
	// EtcdPasswordFile is read at each login. A new password takes effect when etcd
	// rejects the former one.
	EtcdPasswordFile string `json:"etcd_password_file"`
	EtcdCA           string `json:"etcd_ca"` // PEM files, for https endpoints
	EtcdCert         string `json:"etcd_cert"`
	EtcdKey          string `json:"etcd_key"`
	EtcdQuota        int64  `json:"etcd_quota"` // maximum size of the embedded etcd in bytes; 0: its default, 8 GiB
	Prefix           string `json:"prefix"`

	// EventRetention is the minimum time for which the embedded etcd keeps revisions, and so events.
	// It keeps the last 30,000 revisions in any case; 0 means only these.
	EventRetention task.Duration `json:"event_retention"`

	// The embedded etcd as one of several members in several agents.
	InitialCluster      map[string]string `json:"initial_cluster"`       // the peer URLs of all members by name, including this one
	InitialClusterState string            `json:"initial_cluster_state"` // new; or existing, for a member that was added
	EtcdListenPeer      string            `json:"etcd_listen_peer"`      // URL; default: its URL in InitialCluster
	InsecurePeers       bool              `json:"insecure_peers"`        // no TLS between members: anyone who reaches their ports can run commands as root
	EtcdPeerCert        string            `json:"etcd_peer_cert"`        // PEM files: all three or none; with none, the agents create them
	EtcdPeerKey         string            `json:"etcd_peer_key"`
	EtcdPeerCA          string            `json:"etcd_peer_ca"`

	LeaseTTL     task.Duration `json:"lease_ttl"`
	DrainTimeout task.Duration `json:"drain_timeout"`

	SpoolLimit     int64         `json:"spool_limit"`     // maximum output of an attempt in bytes
	SpoolTotal     int64         `json:"spool_total"`     // maximum output of all attempts in bytes
	SpoolRetention task.Duration `json:"spool_retention"` // maximum age of output
	SpoolCompress  bool          `json:"spool_compress"`  // compress output when its attempt has ended

	// ScratchDir contains the node's directory with the working directories of attempts, including scratch directories
	// and private /tmp.
	ScratchDir string `json:"scratch_dir"`
	// While one of these limits is exceeded, the node accepts no runs; 0: no limit.
	MaxLoad       float64   `json:"max_load"`        // of load1
	MinMemoryFree task.Size `json:"min_memory_free"` // bytes
	MinDiskFree   task.Size `json:"min_disk_free"`   // bytes, in the data directory's file system

	Cgroup string `json:"cgroup"` // where control groups of attempts are created: auto, off, or a path

	LogFormat string `json:"log_format"` // json or console
	LogLevel  string `json:"log_level"`
}

// Defaults returns the settings that apply if the user sets none.
func Defaults() Config {
	return Config{
		Name: defaultName(), DataDir: "/var/lib/carillon", Listen: "127.0.0.1:7070",
		Roles: []string{task.RoleScheduler, task.RoleExecutor, task.RoleAPI}, Slots: max(16, 8*runtime.NumCPU()), Weight: 1, Shards: 256,
		TLSClientAuth: string(certs.None),
		Prefix:        record.DefaultPrefix, InitialClusterState: clusterNew, LeaseTTL: task.Duration(10 * time.Second),
		DrainTimeout: task.Duration(30 * time.Second), SpoolLimit: 10 << 20, SpoolTotal: 1 << 30,
		SpoolRetention: task.Duration(7 * 24 * time.Hour), SpoolCompress: true, Sendmail: "/usr/sbin/sendmail", Mail: true, Cgroup: cgroup.Auto, LogFormat: "json", LogLevel: "info",
	}
}

// allRoles are the roles that a node can have.
var allRoles = []string{task.RoleScheduler, task.RoleExecutor, task.RoleAPI}

// servesAPI reports whether the node serves the API to callers. Other nodes serve only health checks, and what nodes
// with the API forward to them.
func (c *Config) servesAPI() bool { return slices.Contains(c.Roles, task.RoleAPI) }

// hasSchedulerRole reports whether the node may own shards.
func (c *Config) hasSchedulerRole() bool { return slices.Contains(c.Roles, task.RoleScheduler) }

// notInName matches what a node's name must not contain.
var notInName = regexp.MustCompile(`[^a-z0-9._-]+`)

// defaultName returns the host's name without its domain, converted to a valid name of a node.
func defaultName() string {
	host, _ := os.Hostname() // without one, the name is "node"
	name, _, _ := strings.Cut(strings.ToLower(host), ".")
	name = strings.Trim(notInName.ReplaceAllString(name, "-"), "-._")
	return cmp.Or(name, "node")
}

// Validate checks c and completes values that depend on others, such as absolute paths and the schemes of endpoints. It
// returns the first fault, as a *task.Error. It reads files that settings name, and resolves the peer address.
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
		return task.Invalid(task.CodeRequired, "etcd_endpoints", "set either etcd_endpoints or embedded")
	}
	if c.EtcdQuota != 0 && !c.Embedded {
		return task.Invalid(task.CodeBadValue, "etcd_quota", "applies only to the embedded etcd; for an external etcd, set its --quota-backend-bytes")
	}
	if c.EventRetention != 0 && !c.Embedded {
		return task.Invalid(task.CodeBadValue, "event_retention", "applies only to the embedded etcd; for an external etcd, set its --auto-compaction-retention")
	}
	if err := c.validatePeers(); err != nil {
		return err
	}
	if err := c.validateTLS(); err != nil {
		return err
	}
	if err := c.validateOrigin(); err != nil {
		return err
	}
	if err := c.validateTrustedProxies(); err != nil {
		return err
	}
	if err := c.validateOIDC(); err != nil {
		return err
	}
	if len(c.Roles) == 0 {
		return task.Invalid(task.CodeRequired, "roles", "requires at least one of scheduler, executor, api")
	}

	for _, r := range c.Roles {
		if !slices.Contains(allRoles, r) {
			return task.NoneOf(task.CodeBadValue, "roles", r, allRoles...)
		}
	}

	if err := c.validateSeparation(os.Geteuid()); err != nil {
		return err
	}
	if err := c.validateDefaultUser(); err != nil {
		return err
	}
	if err := c.validateHTTPAllow(); err != nil {
		return err
	}
	if err := c.validateMail(); err != nil {
		return err
	}
	if err := c.validateAuditFile(); err != nil {
		return err
	}
	if err := c.validateAlarmCommand(); err != nil {
		return err
	}
	if err := cgroup.CheckSetting(c.Cgroup); err != nil {
		return task.Invalid(task.CodeBadValue, "cgroup", "%s", err)
	}

	return c.validateNumbers()
}

// unprivilegedUser is the user of tasks that name none if the daemon is root.
const unprivilegedUser = "nobody"

// taskUser returns the user of tasks that name none; "" is the daemon's own. A daemon that is root runs them as root only
// if the setting says so.
func (c *Config) taskUser() string {
	if c.DefaultUser == "" && os.Geteuid() == 0 {
		return unprivilegedUser
	}
	return c.DefaultUser
}

// validateDefaultUser checks that attempts and the alarm command can run as the default user, if any run here.
func (c *Config) validateDefaultUser() error {
	if !slices.Contains(c.Roles, task.RoleExecutor) && c.AlarmCommand == "" {
		return nil
	}
	if err := process.CheckDefaultUser(c.taskUser()); err != nil {
		return task.Invalid(task.CodeBadValue, "default_user", "%v", err)
	}

	return nil
}

// validateHTTPAllow checks http_allow.
func (c *Config) validateHTTPAllow() error {
	err := (&policy.HTTP{Allow: c.HTTPAllow}).Validate("http")

	var fault *task.Error
	if errors.As(err, &fault) {
		fault.Field = "http_allow" + strings.TrimPrefix(fault.Field, "http.allow")
	}

	return err
}

// validateMail checks sendmail and mail_to.
func (c *Config) validateMail() error {
	if !filepath.IsAbs(c.Sendmail) {
		return task.Invalid(task.CodeBadValue, "sendmail", "%s is not an absolute path; to send no mail, set mail: false", task.Quote(c.Sendmail))
	}

	for i, pattern := range c.MailTo {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return task.Invalid(task.CodeBadValue, fmt.Sprintf("mail_to[%d]", i), "%s is not a pattern of addresses, such as *@example.com", task.Quote(pattern))
		}
	}

	return nil
}

// mailPolicy returns how, and to whom, the node may send the output of runs.
func (c *Config) mailPolicy() outputmail.Policy {
	return outputmail.Policy{Sendmail: c.Sendmail, Off: !c.Mail, To: c.MailTo}
}

// validateAuditFile checks audit_file.
func (c *Config) validateAuditFile() error {
	if c.AuditFile != "" && !filepath.IsAbs(c.AuditFile) {
		return task.Invalid(task.CodeBadValue, "audit_file", "%s is not an absolute path", task.Quote(c.AuditFile))
	}
	return nil
}

// validateAlarmCommand checks alarm_command.
func (c *Config) validateAlarmCommand() error {
	if c.AlarmCommand == "" {
		return nil
	}
	if !filepath.IsAbs(c.AlarmCommand) {
		return task.Invalid(task.CodeBadValue, "alarm_command", "%s is not an absolute path", task.Quote(c.AlarmCommand))
	}

	info, err := os.Stat(c.AlarmCommand)
	switch {
	case err != nil:
		return task.Invalid(task.CodeBadValue, "alarm_command", "%v", err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return task.Invalid(task.CodeBadValue, "alarm_command", "%s is not an executable file", task.Quote(c.AlarmCommand))
	}

	return nil
}

// validateScratch checks scratch_dir. A private /tmp would hide directories below it from their attempts.
func (c *Config) validateScratch() error {
	if c.ScratchDir == "" {
		return nil
	}
	if !filepath.IsAbs(c.ScratchDir) {
		return task.Invalid(task.CodeBadValue, "scratch_dir", "%s is not an absolute path", task.Quote(c.ScratchDir))
	}

	if c.ScratchDir = filepath.Clean(c.ScratchDir); task.PrivateDir(c.ScratchDir) != "" && os.Geteuid() == 0 {
		return task.Invalid(task.CodeBadValue, "scratch_dir", "%s is in %s, which attempts may see as a private directory",
			task.Quote(c.ScratchDir), task.PrivateDir(c.ScratchDir))
	}

	return nil
}

// validateNumbers checks the ranges of numbers and durations, and the log settings.
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
		return task.Invalid(task.CodeOutOfRange, "max_load", "%v is neither 0 nor between 0.1 and 100000", c.MaxLoad)
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

// validateAddresses checks listen, metrics_listen and advertise.
func (c *Config) validateAddresses() error {
	if err := c.validateListen("listen", &c.Listen); err != nil {
		return err
	}

	if c.MetricsListen != "" {
		if err := c.validateListen("metrics_listen", &c.MetricsListen); err != nil {
			return err
		}

		// Port 0 stands for any free port.
		if _, port, _ := net.SplitHostPort(c.MetricsListen); c.MetricsListen == c.Listen && port != "0" {
			return task.Invalid(task.CodeBadValue, "metrics_listen", "%s is also the address of the API (listen): use another port", task.Quote(c.MetricsListen))
		}
	}

	if c.Advertise == "" {
		return nil
	}

	u, err := url.Parse(c.Advertise)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" {
		return task.Invalid(task.CodeBadValue, "advertise", "%s is not a URL such as %s://10.0.0.7:7070", task.Quote(c.Advertise), c.urlScheme())
	}
	if u.Scheme != c.urlScheme() {
		return task.Invalid(task.CodeBadValue, "advertise", "%s must begin with %s://: the API uses https if tls_cert is set, and http otherwise", task.Quote(c.Advertise), c.urlScheme())
	}

	return nil
}

// validateListen checks an address to listen on, and completes it. Without TLS it must be a loopback address, unless
// insecure is set.
func (c *Config) validateListen(field string, address *string) error {
	host, port, err := net.SplitHostPort(*address)
	if err != nil || port == "" {
		return task.Invalid(task.CodeBadValue, field, "%s is not host:port", task.Quote(*address))
	}

	if host == "localhost" {
		// The resolver may return another address for localhost. The listener must bind the address that is checked here.
		host = "127.0.0.1"
		*address = net.JoinHostPort(host, port)
	}

	if !isLoopback(host) && !c.Insecure && !c.servesTLS() {
		return task.Invalid(task.CodeBadValue, field,
			"%s is reachable from other hosts: set tls_cert and tls_key, listen on 127.0.0.1, or accept the risk with --insecure", task.Quote(*address))
	}

	return nil
}

// isLoopback reports whether a host is localhost or a loopback address.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
