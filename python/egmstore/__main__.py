# SPDX-License-Identifier: Apache-2.0
import sys

from egmstore import main

sys.exit(main())
