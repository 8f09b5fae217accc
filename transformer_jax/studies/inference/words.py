"""The words that are said of an arm beside the base."""

BETTER, WORSE, SAME = "better", "worse", "no different within the margin"
UNRESOLVED, UNSTABLE, IDENTICAL = "unresolved", "unstable", "identical"
NO_VERDICT, REFUSED, NOT_PRIMARY = "no verdict", "refused", "not primary"
CANNOT_TELL = "cannot tell"  # of models that had not learned, or could learn no more
UNTUNED = ", at the base's hyper-parameters"  # what words end in where only the base is tuned
