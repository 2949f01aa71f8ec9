import { CodedError, messageOf } from '../../base/index.ts';
import { type ExecHook, isPodOver, lastingContainers, type Pod } from '../../kube/index.ts';
import type { BackupLog } from '../results.ts';
import { goDurationNs, goDurationText } from './durations.ts';

export interface ExecQuestion {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly command: readonly string[];
  /** True: the command may freeze a file system, so it is not retried if it may have run. */
  readonly isOnce?: boolean;
}

/** Runs a command in a container, without stdin. Throws if it fails or its code is not 0. */
export type PodExec = (
  question: ExecQuestion,
  signal: AbortSignal,
) => Promise<{ readonly stdout: string; readonly stderr: string }>;

export const PODS_TYPE = 'pods';
/** Velero: pkg/podexec/pod_command_executor.go, defaultTimeout. */
const TIMEOUT_TEXT = '30s';

export interface RunHookOptions {
  readonly exec: PodExec;
  readonly log: BackupLog;
  readonly signal: AbortSignal;
  /** See {@link ExecQuestion}. */
  readonly isOnce?: boolean;
  /** A longer time-out is cut to it. */
  readonly timeoutMsMax?: number;
}

/**
 * Runs one hook in a pod and logs its output. Skips a pod that has ended. Throws `BAD_HOOK`,
 * `NO_SUCH_CONTAINER`, `HOOK_TIMED_OUT`, `HOOK_ANSWER_LOST` if the hook may have run, and the
 * errors of `exec`. Velero: pkg/podexec/pod_command_executor.go.
 */
export async function runExecHook(
  pod: Pod,
  hook: ExecHook,
  { exec, log, signal, isOnce = false, timeoutMsMax = TIMER_MS_MAX }: RunHookOptions,
): Promise<void> {
  const { namespace = '', name } = pod.metadata;
  const container = containerOf(pod, hook.container ?? '');
  if (!hook.command?.length) throw new CodedError('BAD_HOOK', 'command is required');
  const { phase } = pod.status ?? {};
  if (isPodOver(phase)) {
    const text = `Pod entered phase ${phase} before some backup hooks ran`;
    log.info(text, { resource: PODS_TYPE, namespace, name });
    return;
  }
  const { text, ms } = timeoutOf(hook, timeoutMsMax, (why) => {
    const warning = `Unable to ${why}`;
    log.warn(warning, { resource: PODS_TYPE, namespace, name });
  });
  const late = AbortSignal.timeout(ms);
  const { command } = hook;
  try {
    const both = AbortSignal.any([signal, late]);
    const { stdout, stderr } = await exec(
      { namespace, pod: name, container, command, ...(isOnce && { isOnce }) },
      both,
    );
    log.info(`stdout: ${stdout}`, { resource: PODS_TYPE, namespace, name });
    log.info(`stderr: ${stderr}`, { resource: PODS_TYPE, namespace, name });
  } catch (error) {
    signal.throwIfAborted();
    // The command itself continues, because it cannot be ended from outside.
    if (late.aborted) throw new CodedError('HOOK_TIMED_OUT', `timed out after ${text}`);
    if (error instanceof CodedError && error.facts.isSent === true) {
      const lost = `the answer was lost, and the command may have run; it is not run again: ${messageOf(error)}`;
      throw new CodedError('HOOK_ANSWER_LOST', lost, { cause: error });
    }
    throw error;
  }
}

/** Parses a JSON list of words, or a single word. No shell is involved. */
export function commandOf(text: string): string[] {
  if (!text.startsWith('[')) return [text];
  try {
    const words = JSON.parse(text) as unknown;
    if (Array.isArray(words) && words.every((word) => typeof word === 'string')) return words;
  } catch {
    // As in Velero: an invalid list is the name of a program that starts with a bracket.
  }
  return [text];
}

/** Without a name, Velero takes the first regular container. */
function containerOf({ spec }: Pod, wanted: string): string {
  if (wanted === '') {
    const [first] = spec.containers;
    if (!first) throw new CodedError('NO_SUCH_CONTAINER', 'need at least 1 container');
    return first.name;
  }
  if (lastingContainers(spec).some(({ name }) => name === wanted)) return wanted;
  throw new CodedError('NO_SUCH_CONTAINER', `no such container: ${JSON.stringify(wanted)}`);
}

/** The longest delay of a timer is 24 days. */
const TIMER_MS_MAX = 2 ** 31 - 1;

function timeoutOf(
  { timeout = '' }: ExecHook,
  msMax: number,
  onWrong: (why: string) => void,
): { text: string; ms: number } {
  const ns = goDurationNs(timeout === '' ? '0' : timeout);
  if (ns === undefined || ns < 0n) onWrong(`parse provided timeout ${timeout}, using default`);
  if (ns === undefined || ns <= 0n) return { text: TIMEOUT_TEXT, ms: 30_000 };
  const ms = Number(ns / 1_000_000n);
  if (ms <= msMax) return { text: timeout, ms };
  const text = goDurationText(BigInt(msMax) * 1_000_000n);
  onWrong(`wait ${timeout} for a hook, using ${text}`);
  return { text, ms: msMax };
}
