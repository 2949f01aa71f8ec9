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
export { formatGoTime, GO_ZERO_TIME_NS, parseGoTime } from './go-time.ts';
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
} from './go-json.ts';
export { always, goStruct, listOf, mapField, nested, omitEmpty, optional } from './go-struct.ts';
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
} from './label-selectors.ts';
export { createLimiter, type Limiter, mapLimited, Semaphore } from './limiter.ts';
export { backoffMs, type RetryOptions, retryOf, withRetry } from './retry.ts';
export { type Logger, silentLogger } from './log.ts';
export { LOG_LEVELS, type LogLevel, textLogLine } from './log-line.ts';
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
export { descriptorsMax, shareOfDescriptors } from './descriptors.ts';
export { isPosixLoaded, pinnedPath, posix } from './posix.ts';
export type { FileStatus, NativeLibrary, StatusReader } from './native-status.ts';
export { makeDirectories, refusalOf } from './make-directories.ts';
export { endProcess } from './end-process.ts';
export { compileGlob, type Glob, globAlternatives, matchesGlob } from './glob.ts';
export { bytesOfName, joinPath, textOfName } from './paths.ts';
export { printable } from './printable.ts';
export { nothingWritten, writeAllSync, type WriteSome } from './write-all.ts';
export { quantityBytes, quantityOf } from './quantity.ts';
export { ageText, parseBytes, parseDuration } from './units.ts';
export { redact, redactAndCut } from './redact.ts';
export { BoundedList } from './bounded-list.ts';
export { namedFirst } from './named-first.ts';
export { untilAborted } from './until-aborted.ts';
export { JsonBytes } from './json-bytes.ts';
export { type ProtobufField, protobufFields, type ProtobufValue } from './protobuf-fields.ts';
export { Column } from './column.ts';
export { ObjectNames } from './object-names.ts';
export { define, lookup } from './own-keys.ts';
export { proxyFor } from './proxy.ts';
