package executor

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"

	"github.com/carillonhq/carillon/executor/guardian/guardiantest"
)

// TestMain also runs the test binary as a guardian.
func TestMain(m *testing.M) {
	guardiantest.Main()
	leaktest.Main(m)
}
