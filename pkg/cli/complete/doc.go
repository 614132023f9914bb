// Package complete implements shell completion: names from the server, and values of flags. It waits only
// briefly for the server, caches what it found for a few seconds, and ignores errors.
package complete
