package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/coreos/go-semver/semver"
)

// ErrVersion is wrapped by the error of CheckVersion if Carillon does not support the version of etcd.
var ErrVersion = errors.New("this version of etcd is not supported")

// CheckVersion asks every endpoint for its version. It refuses versions before 3.6.14, and 3.7.0, because Carillon is
// neither written for nor tested with them. An endpoint that does not answer is ignored if another one answers. If
// none answers, CheckVersion returns their errors.
func CheckVersion(ctx context.Context, c *Client) error {
	endpoints := c.Endpoints()
	if len(endpoints) == 0 {
		endpoints = []string{""} // an in-process client has no endpoints, and ignores this argument
	}

	ctx, cancel := context.WithTimeout(ctx, defaultCallTimeout)
	defer cancel()

	var wg sync.WaitGroup

	refused, silent := make([]error, len(endpoints)), make([]error, len(endpoints))
	for i, ep := range endpoints {
		wg.Go(func() {
			resp, err := c.Status(ctx, ep)
			if err != nil {
				silent[i] = fmt.Errorf("etcd at %s: %w", orDefault(ep, "this process"), err)
				return
			}

			if err := VersionFault(resp.Version); err != nil {
				refused[i] = fmt.Errorf("%w: etcd at %s: %w", ErrVersion, orDefault(ep, "this process"), err)
			}
		})
	}

	wg.Wait()

	// One member with an unsupported version is enough to refuse the cluster.
	if err := errors.Join(refused...); err != nil {
		return err
	}

	for _, err := range silent {
		if err == nil {
			return nil
		}
	}

	return errors.Join(silent...)
}

// VersionFault returns the reason why Carillon does not accept an etcd of this version (see CheckVersion), or nil if
// it accepts it. The version has to be checked not only at the start: while Carillon runs, etcd may be replaced by an
// older version, or a member with another version may be added.
func VersionFault(version string) error {
	const needed = "Carillon requires 3.6.14 or later in the 3.6 series, or 3.7.1 or later"
	v, err := semver.NewVersion(version)
	if err != nil {
		return fmt.Errorf("version %.40q cannot be read; %s", version, needed)
	}

	tooOld := v.LessThan(semver.Version{Major: 3, Minor: 6, Patch: 14})
	if v.Major == 3 && v.Minor == 7 {
		tooOld = v.LessThan(semver.Version{Major: 3, Minor: 7, Patch: 1})
	}

	if tooOld {
		return fmt.Errorf("version %s is too old; %s", version, needed)
	}

	return nil
}
