package executor

import (
	"testing"

	"github.com/carillonhq/carillon/pkg/kv/kvtest/leaktest"

	"github.com/carillonhq/carillon/executor/guardian/guardiantest"
)

// The test binary plays guardians, too.
func TestMain(m *testing.M) {
	guardiantest.Main()
	leaktest.Main(m)
}
