package ui

import (
	"slices"
	"testing"

	"github.com/carillonhq/carillon/pkg/internal/ui/browsertest"
)

// The tests in the browser open a page of each screen. They have a build tag, so this test says what they lack.
func TestScreens_AreTestedInTheBrowser(t *testing.T) {
	for _, s := range screens() {
		if !slices.ContainsFunc(browsertest.Pages, func(p browsertest.Page) bool { return p.Screen == s.Name }) {
			t.Errorf("add a page of the screen %q to browsertest.Pages", s.Name)
		}
	}
}
