"""``python -m services.predictor``."""

import sys

from services.predictor.service import Predictor
from services.predictor.settings import PredictorSettings
from shared.process.service import service_main

if __name__ == "__main__":
    sys.exit(service_main(PredictorSettings, "predictor", Predictor))
