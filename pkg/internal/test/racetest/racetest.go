// Package racetest lets tests do less with the race detector in make test.
//
// The race detector makes code five to ten times slower. make test runs some packages twice (see scripts/test.sh):
// without the race detector, where their tests prove what they promise, and with it, where their tests only have to
// execute the code that goroutines share. More seeds and cases of the same kind find more mistakes, but hardly more
// races. Outside of make test, for example in make stress, all tests run completely.
//
// Only packages that make test runs twice may use this package.
package racetest

import "testing"

// Short reports whether the race detector is on, so that the test should be short. In that case, the same test runs a
// second time, without the race detector.
func Short() bool { return raceDetector && testing.Short() }

// SkipIfShort skips a test whose code other tests of its package execute with the race detector.
func SkipIfShort(t testing.TB) {
	t.Helper()

	if Short() {
		t.Skip("make test runs this test without the race detector")
	}
}
