// Properties are tested with the same values in every run.
import fc from "fast-check";

fc.configureGlobal({ seed: 20 });
