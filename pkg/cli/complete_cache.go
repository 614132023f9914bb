package cli

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/settings"
)

// cacheLife is how long TAB offers what it knows, if IO does not say otherwise.
const cacheLife = 5 * time.Second

// cached is what the cache keeps. At is the wall clock's time.
type cached struct {
	At     time.Time `json:"at"`
	Offers []offer   `json:"offers"`
}

// remembered is what fetch found a moment ago, or finds now. The cache
// is one user's, and of one server and one token: nobody is shown what another may see.
func (a *app) remembered(kind string, fetch func() ([]offer, error)) ([]offer, error) {
	file := a.cacheFile(kind)
	var c cached
	if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &c) == nil {
		if age := a.Now().Sub(c.At); age >= 0 && age < cmp.Or(a.CompleteFor, cacheLife) {
			return c.Offers, nil
		}
	}
	offers, err := fetch()
	if err == nil && file != "" {
		a.remember(file, cached{a.Now(), offers})
	}
	return offers, err
}

// cacheFile is where offers of a kind are kept; "" if there is no place for them.
func (a *app) cacheFile(kind string) string {
	dir := a.UserDirFile("XDG_CACHE_HOME", ".cache", "complete")
	s, err := a.Settings()
	if dir == "" || err != nil {
		return ""
	}
	token, err := a.token()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{kind, s.Name, a.ServerSetting(s).Value, a.scope(), token}, "\x00")))
	return filepath.Join(dir, hex.EncodeToString(sum[:12])+".json")
}

// remember writes a file of the cache, and deletes those that are out of date. That
// it cannot be is no fault.
func (a *app) remember(file string, c cached) {
	b, err := json.Marshal(c)
	if err != nil {
		return
	}
	dir := filepath.Dir(file)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && a.Now().Sub(info.ModTime()) > time.Minute {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	_ = settings.WritePrivateFile(file, b)
}
