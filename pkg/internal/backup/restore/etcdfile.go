package restore

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"
)

// fileLockTimeout is how long to wait for the lock of a database file, which another process may have open.
const fileLockTimeout = 5 * time.Second

// The buckets and keys of etcd's database file that a restore reads or changes. They are part of etcd's storage format
// (go.etcd.io/etcd/server/v3/storage/schema), which all versions from 3.5 on share.
var (
	bucketMeta    = []byte("meta")
	bucketCluster = []byte("cluster")
	bucketAlarm   = []byte("alarm")
	bucketAuth    = []byte("auth")
	bucketUsers   = []byte("authUsers")
	bucketRoles   = []byte("authRoles")

	keyStorageVersion = []byte("storageVersion")
	keyClusterVersion = []byte("clusterVersion")
	keyAuthEnabled    = []byte("authEnabled")
)

// etcdFacts are what a snapshot says about the etcd from which it was taken.
type etcdFacts struct {
	// storageVersion and clusterVersion are nil if the file has none.
	storageVersion, clusterVersion []byte
	authEnabled                    bool
	users                          []*authpb.User
	roles                          []*authpb.Role
	corrupt                        bool // etcd has raised the alarm CORRUPT
	noSpace                        bool // etcd has raised the alarm NOSPACE
}

// openFile opens a database file of etcd, and calls fn with it.
func openFile(path string, options bbolt.Options, fn func(*bbolt.DB) error) error {
	options.Timeout = fileLockTimeout
	db, err := bbolt.Open(path, 0o600, &options)
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return fmt.Errorf("another process has %s open", path)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}

	err = fn(db)

	return errors.Join(err, db.Close())
}

// readFacts reads what a database file says about its etcd.
func readFacts(path string) (f etcdFacts, err error) {
	err = openFile(path, bbolt.Options{ReadOnly: true}, func(db *bbolt.DB) error {
		return db.View(func(tx *bbolt.Tx) error {
			f.storageVersion = valueIn(tx, bucketMeta, keyStorageVersion)
			f.clusterVersion = valueIn(tx, bucketCluster, keyClusterVersion)
			f.authEnabled = bytes.Equal(valueIn(tx, bucketAuth, keyAuthEnabled), []byte{1})

			return errors.Join(f.readAlarms(tx), f.readUsers(tx))
		})
	})
	if err != nil {
		return f, fmt.Errorf("read %s: %w", path, err)
	}

	return f, nil
}

// valueIn returns a copy of a value, or nil if it does not exist.
func valueIn(tx *bbolt.Tx, bucket, key []byte) []byte {
	if b := tx.Bucket(bucket); b != nil {
		return bytes.Clone(b.Get(key))
	}
	return nil
}

// readAlarms reads the alarms that etcd had raised.
func (f *etcdFacts) readAlarms(tx *bbolt.Tx) error {
	return eachIn(tx, bucketAlarm, func(k, _ []byte) error {
		var alarm etcdserverpb.AlarmMember
		if err := proto.Unmarshal(k, &alarm); err != nil {
			return fmt.Errorf("an alarm: %w", err)
		}

		switch alarm.GetAlarm() {
		case etcdserverpb.AlarmType_CORRUPT:
			f.corrupt = true
		case etcdserverpb.AlarmType_NOSPACE:
			f.noSpace = true
		}

		return nil
	})
}

// readUsers reads the users and roles of etcd.
func (f *etcdFacts) readUsers(tx *bbolt.Tx) error {
	err := eachIn(tx, bucketRoles, func(_, v []byte) error {
		role := &authpb.Role{}
		f.roles = append(f.roles, role)
		return proto.Unmarshal(v, role)
	})
	if err != nil {
		return fmt.Errorf("a role of etcd: %w", err)
	}

	err = eachIn(tx, bucketUsers, func(_, v []byte) error {
		user := &authpb.User{}
		f.users = append(f.users, user)
		return proto.Unmarshal(v, user)
	})
	if err != nil {
		return fmt.Errorf("a user of etcd: %w", err)
	}

	return nil
}

// eachIn calls fn with everything in a bucket, which may not exist.
func eachIn(tx *bbolt.Tx, bucket []byte, fn func(k, v []byte) error) error {
	if b := tx.Bucket(bucket); b != nil {
		return b.ForEach(fn)
	}
	return nil
}

// userCommands returns the commands of etcdctl that make the users and roles again. A backup has only hashes of their passwords, so
// each command for a user asks for one.
func (f *etcdFacts) userCommands() (commands []string) {
	for _, role := range f.roles {
		name := string(role.GetName())
		if name == "root" {
			continue // etcd creates it together with the user root
		}

		commands = append(commands, "etcdctl role add "+QuoteShell(name))
		for _, p := range role.GetKeyPermission() {
			commands = append(commands, fmt.Sprintf("etcdctl role grant-permission %s %s %s", QuoteShell(name),
				strings.ToLower(p.GetPermType().String()), keyRange(p)))
		}
	}

	// The user root comes first: etcd needs it to enable authentication.
	users := slices.SortedStableFunc(slices.Values(f.users), func(a, b *authpb.User) int {
		return cmp.Compare(notRoot(a), notRoot(b))
	})
	for _, user := range users {
		name := string(user.GetName())
		option := ""
		if user.GetOptions().GetNoPassword() {
			option = " --no-password"
		}

		commands = append(commands, "etcdctl user add "+QuoteShell(name)+option)
		for _, role := range user.GetRoles() {
			commands = append(commands, fmt.Sprintf("etcdctl user grant-role %s %s", QuoteShell(name), QuoteShell(role)))
		}
	}

	if f.authEnabled {
		commands = append(commands, "etcdctl auth enable")
	}

	return commands
}

// notRoot sorts root before all other users.
func notRoot(u *authpb.User) int {
	if string(u.GetName()) == "root" {
		return 0
	}
	return 1
}

// keyRange returns the arguments of etcdctl for the keys of a permission.
func keyRange(p *authpb.Permission) string {
	key, end := p.GetKey(), p.GetRangeEnd()
	switch {
	case len(end) == 0:
		return QuoteShell(string(key))
	case bytes.Equal(end, []byte{0}):
		return QuoteShell(string(key)) + " --from-key"
	case bytes.Equal(end, prefixEnd(key)):
		return QuoteShell(string(key)) + " --prefix"
	}

	return QuoteShell(string(key)) + " " + QuoteShell(string(end))
}

// prefixEnd returns the end of the range of all keys that begin with prefix.
func prefixEnd(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}

	return []byte{0}
}

// QuoteShell quotes a word for a shell, unless it needs no quotes.
func QuoteShell(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// removeAccess turns the authentication of etcd off, and removes its users, roles and alarms. No etcd may be using the file. An etcd that
// started with them would refuse every write.
func removeAccess(path string) error {
	err := openFile(path, bbolt.Options{}, func(db *bbolt.DB) error {
		return db.Update(func(tx *bbolt.Tx) error {
			for _, name := range [][]byte{bucketUsers, bucketRoles, bucketAlarm} {
				if tx.Bucket(name) == nil {
					continue
				}
				if err := tx.DeleteBucket(name); err != nil {
					return err
				}
				if _, err := tx.CreateBucket(name); err != nil {
					return err
				}
			}

			if b := tx.Bucket(bucketAuth); b != nil {
				return b.Put(keyAuthEnabled, []byte{0})
			}

			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("remove the users of etcd: %w", err)
	}

	return nil
}

// compactTxSize is how many bytes one transaction of writeCompact copies.
const compactTxSize = 8 << 20

// writeCompact writes the database file src to dst, without its free space, and with the versions of etcd in f. Like a snapshot that
// etcdctl saves, dst ends with its SHA-256, so that etcdutl accepts it. It returns the SHA-256 and the size of the whole file.
//
// The private etcd has raised both versions to its own. An etcd of the version of the snapshot would refuse them. Nothing that a
// restore writes needs a newer version.
func writeCompact(dst, src string, f etcdFacts) (sum string, size int64, err error) {
	err = openFile(src, bbolt.Options{ReadOnly: true}, func(from *bbolt.DB) error {
		// No transaction of the copy needs to be durable before the whole file is.
		return openFile(dst, bbolt.Options{NoSync: true, NoFreelistSync: true}, func(to *bbolt.DB) error {
			if err := bbolt.Compact(to, from, compactTxSize); err != nil {
				return err
			}
			return to.Update(f.writeVersions)
		})
	})
	if err != nil {
		return "", 0, fmt.Errorf("copy the database of etcd: %w", err)
	}

	return appendHash(dst)
}

// writeVersions writes the versions of the snapshot.
func (f *etcdFacts) writeVersions(tx *bbolt.Tx) error {
	for _, v := range []struct{ bucket, key, value []byte }{
		{bucketMeta, keyStorageVersion, f.storageVersion},
		{bucketCluster, keyClusterVersion, f.clusterVersion},
	} {
		b := tx.Bucket(v.bucket)
		if b == nil {
			continue
		}

		err := b.Delete(v.key)
		if v.value != nil {
			err = b.Put(v.key, v.value)
		}
		if err != nil {
			return err
		}
	}

	return nil
}

// appendHash appends the SHA-256 of a file to it, and syncs it. It returns the SHA-256 and the size of the result.
func appendHash(path string) (sum string, size int64, err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()

	content, whole := sha256.New(), sha256.New()
	n, err := io.Copy(io.MultiWriter(content, whole), file)
	if err != nil {
		return "", 0, err
	}

	hash := content.Sum(nil)
	whole.Write(hash)

	if _, err := file.Write(hash); err != nil {
		return "", 0, err
	}
	if err := file.Sync(); err != nil {
		return "", 0, err
	}

	return hex.EncodeToString(whole.Sum(nil)), n + int64(len(hash)), nil
}
