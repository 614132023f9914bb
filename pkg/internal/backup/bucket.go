package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/carillonhq/carillon/pkg/task"
)

// BucketScheme begins the name of a place in a bucket: s3://BUCKET/PREFIX.
const BucketScheme = "s3://"

// bucketTries is how often a request is sent if the storage answers with an error that may pass. The pauses grow to a second.
var bucketTries = 6 // a variable for tests

const (
	// bucketPart is the size in bytes of the parts in which a large backup is sent. One part is in memory at a time, and S3 allows 10,000.
	bucketPart = 16 << 20
	// cleanupTimeout limits the deletion of what a failed Store has written.
	cleanupTimeout = 30 * time.Second
)

// Bucket is a place for backups in a bucket of S3, or of another storage with its API. Like a directory, it has two objects for each
// backup: ID.db.zst, and the manifest ID.json, which is written last.
type Bucket struct {
	client *minio.Client
	bucket string
	prefix string // of all names; empty, or with a slash at its end
}

// IsBucket reports whether the name of a backup, or of a place for backups, is in a bucket.
func IsBucket(name string) bool { return strings.HasPrefix(name, BucketScheme) }

// OpenBucket returns the place with a name, s3://BUCKET or s3://BUCKET/PREFIX. It sends no request. env returns the variables of the
// environment, which say how to reach the bucket, as for other tools: the credentials are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, those of a profile in
// ~/.aws/credentials (AWS_PROFILE), or those of the role of the host; AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL is the address of another
// storage than Amazon's, AWS_REGION its region, and AWS_CA_BUNDLE a file with the certificates that it may have.
func OpenBucket(name string, env func(name string) string) (*Bucket, error) {
	bucket, prefix, _ := strings.Cut(strings.TrimPrefix(name, BucketScheme), "/")
	if !IsBucket(name) || bucket == "" {
		return nil, task.Invalid(task.CodeBadValue, "", "%s is not the name of a place in a bucket: %sBUCKET/PREFIX", task.Quote(name), BucketScheme)
	}
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix += "/"
	}

	endpoint, err := bucketEndpoint(env)
	if err != nil {
		return nil, err
	}
	transport, err := bucketTransport(env)
	if err != nil {
		return nil, err
	}

	c, err := minio.New(endpoint.Host, &minio.Options{
		Creds: bucketCredentials(env), Secure: endpoint.Scheme == "https", Transport: transport,
		Region: cmp.Or(env("AWS_REGION"), env("AWS_DEFAULT_REGION")), MaxRetries: bucketTries,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}

	return &Bucket{c, bucket, prefix}, nil
}

// bucketCredentials returns the credentials of the environment, of a profile, or of the role of the host.
func bucketCredentials(env func(string) string) *credentials.Credentials {
	if key := env("AWS_ACCESS_KEY_ID"); key != "" {
		return credentials.NewStaticV4(key, env("AWS_SECRET_ACCESS_KEY"), env("AWS_SESSION_TOKEN"))
	}

	providers := []credentials.Provider{&credentials.FileAWSCredentials{Filename: env("AWS_SHARED_CREDENTIALS_FILE"), Profile: env("AWS_PROFILE")}}
	if env("AWS_EC2_METADATA_DISABLED") != "true" {
		providers = append(providers, &credentials.IAM{})
	}

	return credentials.NewChainCredentials(providers)
}

// bucketEndpoint returns the address of the storage. Beyond this host it must be encrypted, because a backup contains everything.
func bucketEndpoint(env func(string) string) (*url.URL, error) {
	name := "AWS_ENDPOINT_URL_S3"
	if env(name) == "" {
		name = "AWS_ENDPOINT_URL"
	}

	text := cmp.Or(env(name), "https://s3.amazonaws.com")
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "":
		return nil, task.Invalid(task.CodeBadValue, name, "%s is not the URL of a storage, such as https://s3.example.com", task.Quote(text))
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return nil, task.Invalid(task.CodeBadValue, name, "%s is not encrypted: use https", task.Quote(text))
	}

	return u, nil
}

func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// bucketTransport returns the transport of the client, which trusts the certificates in AWS_CA_BUNDLE, or those of the host.
func bucketTransport(env func(string) string) (*http.Transport, error) {
	transport, err := minio.DefaultTransport(true)
	if err != nil {
		return nil, err
	}

	file := env("AWS_CA_BUNDLE")
	if file == "" {
		return transport, nil
	}

	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("AWS_CA_BUNDLE: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, task.Invalid(task.CodeBadValue, "AWS_CA_BUNDLE", "%s contains no certificate", file)
	}
	transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}

	return transport, nil
}

// String returns the name of the place.
func (b *Bucket) String() string {
	return strings.TrimSuffix(BucketScheme+b.bucket+"/"+b.prefix, "/")
}

// List lists the backups as [List] does.
func (b *Bucket) List(ctx context.Context) ([]Listed, error) {
	sizes, times := map[string]int64{}, map[string]time.Time{}
	list := map[string]Listed{}

	for o := range b.client.ListObjectsIter(ctx, b.bucket, minio.ListObjectsOptions{Prefix: b.prefix}) {
		if o.Err != nil {
			return nil, b.wrap("list "+b.String(), o.Err)
		}

		name := path.Base(o.Key)
		sizes[name], times[name] = o.Size, o.LastModified
		if l, ok := newListed(name); ok && o.Key == b.prefix+name {
			list[l.Name] = l
		}
	}

	for name, l := range list {
		if l.Problem == "" {
			data := l.Name + dataSuffix
			l.Size, l.ModTime = sizes[data], times[data]
			m, err := b.readManifest(ctx, l.Name)

			switch {
			case errors.Is(err, task.ErrUnavailable):
				return nil, err
			case errors.Is(err, task.ErrNotFound):
				l.Problem = errNoManifest.Error()
			case err != nil:
				l.Problem = err.Error()
			case l.Size != m.PackedSize:
				l.Problem = fmt.Sprintf("%v: the object has %d bytes instead of %d", ErrDamaged, l.Size, m.PackedSize)
			default:
				l.Manifest = m
			}
		}
		list[name] = l
	}

	return sortListed(list), nil
}

// Store stores a backup as [Store] does, and returns its name. It reads the snapshot back before it writes the manifest.
func (b *Bucket) Store(ctx context.Context, m *Manifest, r io.Reader) (name string, err error) {
	return b.nameOf(m.ID), b.store(ctx, m, r)
}

func (b *Bucket) store(ctx context.Context, m *Manifest, r io.Reader) (err error) {
	for _, name := range []string{m.ID + manifestSuffix, m.ID + dataSuffix} {
		_, err := b.client.StatObject(ctx, b.bucket, b.prefix+name, minio.StatObjectOptions{})
		err = b.wrap(b.nameOf(name), err)
		switch {
		case err == nil:
			return fmt.Errorf("%s: %w", b.nameOf(name), task.ErrExists)
		case !errors.Is(err, task.ErrNotFound):
			return err
		}
	}

	text, err := m.Encode()
	if err != nil {
		return err
	}

	// Without its manifest, the object is no backup. Remove it if anything fails, also because the command was interrupted.
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
			defer cancel()
			_ = b.client.RemoveIncompleteUpload(ctx, b.bucket, b.prefix+m.ID+dataSuffix)
			_ = b.client.RemoveObject(ctx, b.bucket, b.prefix+m.ID+dataSuffix, minio.RemoveObjectOptions{})
		}
	}()

	content := &verifiedReader{r: contextReader{ctx, r}, hash: sha256.New(), left: m.PackedSize, want: m.PackedSHA256}
	if err := b.put(ctx, m.ID+dataSuffix, content, m.PackedSize); err != nil {
		return cmp.Or(content.err, err) // the storage may only have seen that the content ended
	}
	if err := b.compare(ctx, m.ID+dataSuffix, m.PackedSize, m.PackedSHA256); err != nil {
		return err
	}

	return b.put(ctx, m.ID+manifestSuffix, bytes.NewReader(text), int64(len(text)))
}

// put stores an object.
func (b *Bucket) put(ctx context.Context, name string, r io.Reader, size int64) error {
	_, err := b.client.PutObject(ctx, b.bucket, b.prefix+name, r, size, minio.PutObjectOptions{PartSize: bucketPart, ContentType: "application/octet-stream"})
	return b.wrap("store "+b.nameOf(name), err)
}

// compare reads an object back.
func (b *Bucket) compare(ctx context.Context, name string, size int64, want string) error {
	o, err := b.get(ctx, name)
	if err != nil {
		return err
	}

	defer o.Close()

	sum := sha256.New()
	n, err := io.Copy(sum, o)
	if err != nil {
		return b.wrap("read back "+b.nameOf(name), err)
	}

	return compareContent("the object that was written", n, sum, size, want)
}

// get begins to read an object.
func (b *Bucket) get(ctx context.Context, name string) (*minio.Object, error) {
	o, err := b.client.GetObject(ctx, b.bucket, b.prefix+name, minio.GetObjectOptions{})
	if err == nil {
		_, err = o.Stat()
	}

	return o, b.wrap("read "+b.nameOf(name), err)
}

// readManifest reads the manifest of a backup.
func (b *Bucket) readManifest(ctx context.Context, id string) (*Manifest, error) {
	o, err := b.get(ctx, id+manifestSuffix)
	if err != nil {
		return nil, err
	}

	defer o.Close()

	text, err := io.ReadAll(io.LimitReader(o, maxManifest+1))
	if err != nil {
		return nil, b.wrap("read "+b.nameOf(id+manifestSuffix), err)
	}

	return ParseManifest(text)
}

// Fetch copies a backup to a directory of this host, where Open finds it by its ID. It verifies what it receives.
func (b *Bucket) Fetch(ctx context.Context, id, dir string) (*Stored, error) {
	if _, ok := ParseID(id); !ok {
		return nil, task.Invalid(task.CodeBadValue, "", "%s is not the ID of a backup, as `carillon backup list` prints it", task.Quote(id))
	}

	m, err := b.readManifest(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("backup %s: %w", b.nameOf(id), err)
	}
	if err := RequireSpace(dir, m.PackedSize); err != nil {
		return nil, err
	}

	o, err := b.get(ctx, id+dataSuffix)
	if errors.Is(err, task.ErrNotFound) {
		err = fmt.Errorf("%w: %s is missing", ErrDamaged, id+dataSuffix)
	}
	if err != nil {
		return nil, fmt.Errorf("backup %s: %w", b.nameOf(id), err)
	}

	defer o.Close()

	s, err := Store(ctx, dir, m, o)
	if err != nil {
		return nil, fmt.Errorf("backup %s: %w", b.nameOf(id), b.wrap("read "+id+dataSuffix, err))
	}
	s.Name = b.nameOf(id)

	return s, nil
}

// nameOf returns the full name of an object.
func (b *Bucket) nameOf(name string) string { return BucketScheme + b.bucket + "/" + b.prefix + name }

// SplitBucketName returns the place and the ID in the name of a backup in a bucket.
func SplitBucketName(name string) (place, id string) {
	place, id = path.Split(strings.TrimPrefix(name, BucketScheme))
	return BucketScheme + strings.TrimSuffix(place, "/"), strings.TrimSuffix(strings.TrimSuffix(id, manifestSuffix), dataSuffix)
}

// wrap adds what was done to an error of the storage, and says what kind of error it is. Other errors stay as they are.
func (b *Bucket) wrap(what string, err error) error {
	if err == nil {
		return nil
	}

	var answer minio.ErrorResponse
	var sent *url.Error
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case errors.As(err, &answer):
		switch {
		case answer.Code == minio.NoSuchBucket:
			return fmt.Errorf("%s: %w: there is no bucket %s", what, task.ErrNotFound, b.bucket)
		case answer.Code == minio.NoSuchKey, answer.StatusCode == http.StatusNotFound:
			return fmt.Errorf("%s: %w", what, task.ErrNotFound)
		case answer.StatusCode >= http.StatusInternalServerError, answer.StatusCode == http.StatusTooManyRequests:
			return fmt.Errorf("%s: %w: the storage answers %d %s", what, task.ErrUnavailable, answer.StatusCode, answer.Code)
		case answer.StatusCode == http.StatusForbidden, answer.StatusCode == http.StatusUnauthorized:
			return fmt.Errorf("%s: the storage refuses the credentials, or they do not allow it: %s", what, answer.Code)
		}
	case errors.As(err, &sent):
		return fmt.Errorf("%s: %w: %v", what, task.ErrUnavailable, sent.Err)
	}

	return fmt.Errorf("%s: %w", what, err)
}

// verifiedReader reads content of a known size. Its last bytes are returned only if the content has the right SHA-256, so content that is
// wrong is never sent completely.
type verifiedReader struct {
	r    io.Reader
	hash hash.Hash
	left int64
	want string
	err  error // why it ended early
}

func (v *verifiedReader) Read(p []byte) (int, error) {
	switch {
	case v.err != nil:
		return 0, v.err
	case v.left == 0:
		return 0, io.EOF
	}

	n, err := v.r.Read(p[:min(int64(len(p)), v.left)])
	v.hash.Write(p[:n])
	v.left -= int64(n)

	switch {
	case v.left > 0:
		v.err = cutShort(err)
	case hex.EncodeToString(v.hash.Sum(nil)) != v.want:
		v.err = fmt.Errorf("%w: what was received has another SHA-256", ErrDamaged)
	}
	if v.err != nil {
		return 0, v.err
	}

	return n, nil
}

// FetchTemp copies a backup in a bucket to a new directory in dir. remove removes it.
func FetchTemp(ctx context.Context, name, dir string, env func(string) string) (s *Stored, remove func() error, err error) {
	place, id := SplitBucketName(name)
	b, err := OpenBucket(place, env)
	if err != nil {
		return nil, nil, err
	}

	temp, err := os.MkdirTemp(dir, "carillon-backup-*")
	if err != nil {
		return nil, nil, err
	}

	s, err = b.Fetch(ctx, id, temp)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(temp))
	}

	return s, func() error { return os.RemoveAll(temp) }, nil
}
