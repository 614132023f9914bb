package complete

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/settings"
)

// cacheTTL is how long cached words are offered, unless IO.CompleteFor is set.
const cacheTTL = 5 * time.Second

// cacheEntry is the contents of a cache file. At is a time of the wall clock.
type cacheEntry struct {
	At     time.Time `json:"at"`
	Offers []Offer   `json:"offers"`
}

// cachedOffers returns cached words, or the result of fetch. The cache belongs to one user, one server and one
// token, so it never offers words that another user may see.
func cachedOffers(f *factory.Factory, kind string, fetch func() ([]Offer, error)) ([]Offer, error) {
	file := cacheFile(f, kind)
	var c cacheEntry
	if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &c) == nil {
		if age := f.Now().Sub(c.At); age >= 0 && age < cmp.Or(f.CompleteFor, cacheTTL) {
			return c.Offers, nil
		}
	}

	offers, err := fetch()
	if err == nil && file != "" {
		writeCache(f, file, cacheEntry{f.Now(), offers})
	}

	return offers, err
}

// cacheFile returns the path of the cache for a kind of words, or "" if it cannot be cached.
func cacheFile(f *factory.Factory, kind string) string {
	dir := f.UserDirFile("XDG_CACHE_HOME", ".cache", "complete")
	s, err := f.Settings()
	if dir == "" || err != nil {
		return ""
	}

	token, err := f.Token()
	if err != nil {
		return ""
	}

	sum := sha256.Sum256([]byte(strings.Join([]string{kind, s.Name, f.ServerSetting(s).Value, f.Scope(), token}, "\x00")))

	return filepath.Join(dir, hex.EncodeToString(sum[:12])+".json")
}

// writeCache writes a cache file and deletes outdated ones. It ignores errors, because the cache is optional.
func writeCache(f *factory.Factory, file string, c cacheEntry) {
	b, err := json.Marshal(c)
	if err != nil {
		return
	}

	dir := filepath.Dir(file)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && f.Now().Sub(info.ModTime()) > time.Minute {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}

	_ = settings.WritePrivateFile(file, b)
}
