import { CodedError } from '../../base/index.ts';
import { type Status, unreachable } from './errors.ts';
import type { Transport } from './transport.ts';
import { messagesOf } from './websocket.ts';

export interface ExecOptions {
  readonly namespace: string;
  readonly pod: string;
  readonly container: string;
  readonly command: readonly string[];
  /** Closes the connection. The command itself continues, because Kubernetes cannot stop it. */
  readonly signal?: AbortSignal | undefined;
  /** The command must not run twice: callers do not retry it if it may have run. */
  readonly isOnce?: boolean | undefined;
  /** Limit for each of the two outputs. The rest is read and dropped. */
  readonly outputBytesMax?: number;
}

export interface ExecOutput {
  readonly stdout: string;
  readonly stderr: string;
}

/** k8s.io/apimachinery, util/remotecommand. Version 5 only adds an end of stdin. */
const PROTOCOLS = ['v5.channel.k8s.io', 'v4.channel.k8s.io'];
const CHANNEL_STDOUT = 1;
const CHANNEL_STDERR = 2;
const CHANNEL_STATUS = 3;
/** Our choice: the output goes into a log. */
const OUTPUT_BYTES_MAX = 64 << 10;
/**
 * Limit for a node's message about a failure, which goes into the results of a backup. Our choice.
 */
const MESSAGE_MAX = 1024;

interface ExecStatus extends Status {
  readonly status?: string;
}

/**
 * Runs a command in a container, without stdin, and waits for its end. Throws `EXEC_FAILED` if the
 * command cannot run or exits with another code than 0 (fact `exitCode`), and the `KUBE_*` errors.
 * The fact `isSent` is set if the answer was lost and the command may have run.
 */
export async function execIn(transport: Transport, options: ExecOptions): Promise<ExecOutput> {
  const { namespace, pod, container, command, signal } = options;
  const { outputBytesMax = OUTPUT_BYTES_MAX } = options;
  const query = new URLSearchParams({ container, stdout: 'true', stderr: 'true' });
  for (const word of command) query.append('command', word);
  const place = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods/${encodeURIComponent(pod)}`;
  const what = `run a command in pod ${namespace}/${pod}`;
  const path = `${place}/exec?${query.toString()}`;
  const { socket, head } = await transport.upgrade({ path, what, signal, protocols: PROTOCOLS });
  const outputs = {
    [CHANNEL_STDOUT]: new Output(outputBytesMax),
    [CHANNEL_STDERR]: new Output(outputBytesMax),
  };
  const abort = (): void => void socket.destroy();
  signal?.addEventListener('abort', abort, { once: true });
  let ended: ExecStatus | undefined;
  try {
    for await (const message of messagesOf(socket, head)) {
      const channel = message[0];
      const bytes = message.subarray(1);
      if (channel === CHANNEL_STDOUT || channel === CHANNEL_STDERR) outputs[channel].add(bytes);
      else if (channel === CHANNEL_STATUS && bytes.length > 0) {
        ended = JSON.parse(bytes.toString()) as ExecStatus;
        break;
      }
    }
  } catch (error) {
    signal?.throwIfAborted();
    throw unreachable(what, error, true);
  } finally {
    signal?.removeEventListener('abort', abort);
  }
  signal?.throwIfAborted();
  if (ended?.status === 'Success') {
    return { stdout: outputs[CHANNEL_STDOUT].text, stderr: outputs[CHANNEL_STDERR].text };
  }
  throw failureOf(what, ended);
}

function failureOf(what: string, ended: ExecStatus | undefined): CodedError {
  const causes = (
    ended?.details as { causes?: { reason?: string; message?: string }[] } | undefined
  )?.causes;
  const code = Number(causes?.find(({ reason }) => reason === 'ExitCode')?.message);
  const text = Number.isFinite(code)
    ? `command terminated with exit code ${code}`
    : (ended?.message?.slice(0, MESSAGE_MAX) ??
      'the server ended the connection without saying how the command ended');
  const facts = Number.isFinite(code) ? { exitCode: code } : ended ? {} : { isSent: true };
  return new CodedError('EXEC_FAILED', `${what}: ${text}`, { facts });
}

/** Keeps the beginning of an output. */
class Output {
  readonly #bytesMax: number;
  readonly #parts: Buffer[] = [];
  #bytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  add(bytes: Buffer): void {
    const kept = bytes.subarray(0, Math.max(0, this.#bytesMax - this.#bytes));
    this.#bytes += kept.length;
    if (kept.length > 0) this.#parts.push(Buffer.from(kept));
  }

  get text(): string {
    return Buffer.concat(this.#parts).toString('utf8');
  }
}
