"""`neptune_scale.exceptions`: the names that scripts catch. Only `NeptuneUnableToLogData` is ever raised here."""

from __future__ import annotations

from typing import Any


class NeptuneScaleError(Exception):
    """Base of Neptune's errors."""

    message = "An error occurred in the Neptune client."

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(kwargs.get("message") or kwargs.get("reason") or " ".join(map(str, args)) or self.message)


class NeptuneScaleWarning(Warning):
    """Base of Neptune's warnings."""

    message = "A warning occurred in the Neptune client."

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(kwargs.get("message") or " ".join(map(str, args)) or self.message)


class NeptuneUnableToLogData(NeptuneScaleError):
    """A call with a value that cannot be logged, where `NEPTUNE_LOG_FAILURE_ACTION` is `raise`."""


class NeptuneBadRequestError(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneSynchronizationStopped(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneFloatValueNanInfUnsupported(NeptuneUnableToLogData):
    """As in neptune-scale; never raised here."""


class GenericFloatValueNanInfUnsupported(NeptuneFloatValueNanInfUnsupported):
    """As in neptune-scale; never raised here."""


class NeptuneUnauthorizedError(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneInvalidCredentialsError(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneUnexpectedError(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneRetryableError(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneConnectionLostError(NeptuneRetryableError):
    """As in neptune-scale; never raised here."""


class NeptuneUnexpectedResponseError(NeptuneRetryableError):
    """As in neptune-scale; never raised here."""


class NeptuneTooManyRequestsResponseError(NeptuneRetryableError):
    """As in neptune-scale; never raised here."""


class NeptuneInternalServerError(NeptuneRetryableError):
    """As in neptune-scale; never raised here."""


class NeptuneUnableToAuthenticateError(NeptuneRetryableError):
    """As in neptune-scale; never raised here."""


class NeptuneFileUploadError(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneFileUploadTemporaryError(NeptuneRetryableError):
    """As in neptune-scale; never raised here."""


class NeptuneProjectError(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneProjectNotFound(NeptuneProjectError):
    """As in neptune-scale; never raised here."""


class NeptuneProjectInvalidName(NeptuneProjectError):
    """As in neptune-scale; never raised here."""


class NeptuneProjectAlreadyExists(NeptuneProjectError):
    """As in neptune-scale; never raised here."""


class NeptuneRunError(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneRunNotFound(NeptuneRunError):
    """As in neptune-scale; never raised here."""


class NeptuneRunDuplicate(NeptuneScaleWarning):
    """As in neptune-scale; never raised here."""


class NeptuneRunConflicting(NeptuneScaleWarning):
    """As in neptune-scale; never raised here."""


class NeptuneRunForkParentNotFound(NeptuneScaleWarning):
    """As in neptune-scale; never raised here."""


class NeptuneRunInvalidCreationParameters(NeptuneRunError):
    """As in neptune-scale; never raised here."""


class NeptuneAttributePathExceedsSizeLimit(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneAttributePathEmpty(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneAttributePathInvalid(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneAttributePathNonWritable(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneAttributeTypeUnsupported(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneAttributeTypeMismatch(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneSeriesPointDuplicate(NeptuneScaleWarning):
    """As in neptune-scale; never raised here."""


class NeptuneSeriesStepNonIncreasing(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneSeriesStepTooLarge(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneSeriesStepNotAfterForkPoint(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneSeriesTimestampDecreasing(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneStringValueExceedsSizeLimit(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneStringSetExceedsSizeLimit(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneFileMetadataExceedsSizeLimit(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneProjectNotProvided(NeptuneRetryableError):
    """As in neptune-scale; never raised here."""


class NeptuneApiTokenNotProvided(NeptuneRetryableError):
    """As in neptune-scale; never raised here."""


class NeptunePreviewStepNotAfterLastCommittedStep(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneLocalStorageInUnsupportedVersion(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneDatabaseConflict(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneHistogramBinEdgesContainNaN(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneHistogramTooManyBins(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneHistogramBinEdgesNotIncreasing(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


class NeptuneHistogramValuesLengthMismatch(NeptuneScaleError):
    """As in neptune-scale; never raised here."""


__all__ = [
    "GenericFloatValueNanInfUnsupported",
    "NeptuneApiTokenNotProvided",
    "NeptuneAttributePathEmpty",
    "NeptuneAttributePathExceedsSizeLimit",
    "NeptuneAttributePathInvalid",
    "NeptuneAttributePathNonWritable",
    "NeptuneAttributeTypeMismatch",
    "NeptuneAttributeTypeUnsupported",
    "NeptuneBadRequestError",
    "NeptuneConnectionLostError",
    "NeptuneDatabaseConflict",
    "NeptuneFileMetadataExceedsSizeLimit",
    "NeptuneFileUploadError",
    "NeptuneFileUploadTemporaryError",
    "NeptuneFloatValueNanInfUnsupported",
    "NeptuneHistogramBinEdgesContainNaN",
    "NeptuneHistogramBinEdgesNotIncreasing",
    "NeptuneHistogramTooManyBins",
    "NeptuneHistogramValuesLengthMismatch",
    "NeptuneInternalServerError",
    "NeptuneInvalidCredentialsError",
    "NeptuneLocalStorageInUnsupportedVersion",
    "NeptunePreviewStepNotAfterLastCommittedStep",
    "NeptuneProjectAlreadyExists",
    "NeptuneProjectError",
    "NeptuneProjectInvalidName",
    "NeptuneProjectNotFound",
    "NeptuneProjectNotProvided",
    "NeptuneRetryableError",
    "NeptuneRunConflicting",
    "NeptuneRunDuplicate",
    "NeptuneRunError",
    "NeptuneRunForkParentNotFound",
    "NeptuneRunInvalidCreationParameters",
    "NeptuneRunNotFound",
    "NeptuneScaleError",
    "NeptuneScaleWarning",
    "NeptuneSeriesPointDuplicate",
    "NeptuneSeriesStepNonIncreasing",
    "NeptuneSeriesStepNotAfterForkPoint",
    "NeptuneSeriesStepTooLarge",
    "NeptuneSeriesTimestampDecreasing",
    "NeptuneStringSetExceedsSizeLimit",
    "NeptuneStringValueExceedsSizeLimit",
    "NeptuneSynchronizationStopped",
    "NeptuneTooManyRequestsResponseError",
    "NeptuneUnableToAuthenticateError",
    "NeptuneUnableToLogData",
    "NeptuneUnauthorizedError",
    "NeptuneUnexpectedError",
    "NeptuneUnexpectedResponseError",
]
