/**
 * Missing parts of Node: errors with codes, time, randomness and limits. Also Go's JSON and time
 * formats. Must not know repositories, volumes or Kubernetes.
 */
export {
  asError,
  assert,
  CanceledError,
  CodedError,
  type CodedErrorOptions,
  codeOf,
  isCanceled,
  isCode,
  messageOf,
  systemCode,
} from './errors.ts';
export {
  type Clock,
  HOUR_NS,
  ManualClock,
  MINUTE_NS,
  type Nanoseconds,
  OffsetClock,
  rfc3339Seconds,
  SECOND_NS,
  SystemClock,
  systemClock,
  toDate,
  unixSeconds,
} from './clock.ts';
export { type Certificate, makeCertificate } from './certificate.ts';
export { monotonicOf, Stopwatch } from './stopwatch.ts';
export { formatGoTime, GO_ZERO_TIME_NS, parseGoTime } from './go/go-time.ts';
export {
  compareUtf8,
  decodeGoUtf8,
  goEscaped,
  goJson,
  goString,
  isExactNumber,
  jsonCopy,
  numberText,
  parseJsonExact,
  parseJsonLossless,
  RawNumber,
  exactJson,
  sortedGoJson,
} from './go/go-json.ts';
export { always, goStruct, listOf, mapField, nested, omitEmpty, optional } from './go/go-struct.ts';
export { type RandomBytes, randomBytes, randomHex } from './random.ts';
export {
  isLabelKey,
  isLabelValue,
  LABEL_OPERATORS,
  type LabelSelector,
  type LabelSelectorRequirement,
  labelSelectorOf,
  labelsProblem,
  matchesSelector,
  parseSelector,
  requirementsOf,
  type Selector,
  selectorErrors,
  selectorOf,
  takesValues,
} from './text/label-selectors.ts';
export { createLimiter, type Limiter, mapLimited, Semaphore } from './limiter.ts';
export { backoffMs, type RetryOptions, retryOf, withRetry } from './retry.ts';
export { type Logger, silentLogger } from './log.ts';
export { LOG_LEVELS, type LogLevel, textLogLine } from './text/log-line.ts';
export { Secret } from './secret.ts';
export {
  asBuffer,
  decodeUvarint,
  encodeUvarint,
  formatBytes,
  giveBack,
  lastLinesOf,
  totalLength,
} from './bytes.ts';
export { descriptorsMax, shareOfDescriptors } from './posix/descriptors.ts';
export { isPosixLoaded, pinnedPath, posix } from './posix/posix.ts';
export type { FileStatus, NativeLibrary, StatusReader } from './posix/native-status.ts';
export { makeDirectories, refusalOf } from './posix/make-directories.ts';
export { endProcess } from './posix/end-process.ts';
export { compileGlob, type Glob, globAlternatives, matchesGlob } from './text/glob.ts';
export { bytesOfName, joinPath, textOfName } from './posix/paths.ts';
export { printable } from './text/printable.ts';
export { nothingWritten, writeAllSync, type WriteSome } from './posix/write-all.ts';
export { quantityBytes, quantityOf } from './go/quantity.ts';
export { ageText, parseBytes, parseDuration } from './text/units.ts';
export { redact, redactAndCut } from './text/redact.ts';
export { BoundedList } from './bounded-list.ts';
export { namedFirst } from './text/short-list.ts';
export { untilAborted } from './until-aborted.ts';
export { JsonBytes } from './go/json-bytes.ts';
export { type ProtobufField, protobufFields, type ProtobufValue } from './go/protobuf-fields.ts';
export { Column } from './number-column.ts';
export { ObjectNames } from './text/object-names.ts';
export { define, lookup } from './own-properties.ts';
export { proxyFor } from './proxy.ts';
