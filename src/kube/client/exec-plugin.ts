import { spawn } from 'node:child_process';
import { isatty } from 'node:tty';
import { CodedError, lookup, messageOf, redactAndCut, systemCode } from '../../base/index.ts';
import type { ExecPlugin } from './kubeconfig.ts';

/** The answer of an exec plugin (client.authentication.k8s.io, ExecCredential). */
export interface ExecCredential {
  readonly token?: string | undefined;
  readonly clientCertificateData?: string | undefined;
  readonly clientKeyData?: string | undefined;
  /** Milliseconds since 1970. Left out: valid until the API server refuses them. */
  readonly expiresMs?: number | undefined;
}

/** client-go has no limit, and would hang silently. Interactive logins may take longer. */
const ANSWER_MS = 60_000;
const ANSWER_BYTES_MAX = 1 << 20;
const ERROR_BYTES_MAX = 16 << 10;

/**
 * Runs the exec plugin of a kubeconfig as client-go does (plugin/pkg/client/auth/exec/exec.go).
 * `cluster` is passed if `provideClusterInfo` is set. Throws `KUBE_UNAVAILABLE` with the name of
 * the plugin.
 */
export async function credentialOf(plugin: ExecPlugin, cluster?: object): Promise<ExecCredential> {
  const { apiVersion, command, interactiveMode } = plugin;
  const isTerminal = isatty(0);
  if (interactiveMode === 'Always' && !isTerminal) {
    throw failed(command, 'it needs a terminal (interactiveMode: Always)');
  }
  const interactive = isTerminal && interactiveMode !== 'Never';
  const spec = { ...(cluster && { cluster }), interactive };
  const info = JSON.stringify({ kind: 'ExecCredential', apiVersion, spec });
  const own = Object.fromEntries((plugin.env ?? []).map(({ name, value }) => [name, value]));
  // eslint-disable-next-line no-restricted-properties -- plugins get this environment
  const env = { ...process.env, ...own, KUBERNETES_EXEC_INFO: info };
  const answer = await outputOf(plugin, { env, isInteractive: interactive });
  return credentialIn(answer, plugin);
}

async function outputOf(
  { command, args, installHint = '' }: ExecPlugin,
  { env, isInteractive }: { env: NodeJS.ProcessEnv; isInteractive: boolean },
): Promise<string> {
  const stdin = isInteractive ? 'inherit' : 'ignore';
  const stderr = isInteractive ? 'inherit' : 'pipe';
  const child = spawn(command, args, { env, stdio: [stdin, 'pipe', stderr] });
  let answer = '';
  let errors = '';
  child.stdout?.setEncoding('utf8').on('data', (part: string) => {
    answer = (answer + part).slice(0, ANSWER_BYTES_MAX + 1);
  });
  child.stderr?.setEncoding('utf8').on('data', (part: string) => {
    errors = (errors + part).slice(-ERROR_BYTES_MAX);
  });
  let isLate = false;
  const kill = (): void => {
    isLate = true;
    child.kill('SIGKILL');
    // Programs that the plugin started may still hold the pipes.
    child.stdout?.destroy();
    child.stderr?.destroy();
  };
  const late = isInteractive ? undefined : setTimeout(kill, ANSWER_MS);
  try {
    const code = await new Promise<number | string>((resolve, reject) => {
      child.on('error', reject);
      child.on('close', (status, signal) => {
        resolve(status ?? signal ?? 'nothing');
      });
    });
    if (isLate) throw failed(command, `it gave no answer within ${ANSWER_MS / 1000} s`);
    if (code !== 0) throw failed(command, errors.trim() || `it ended with ${code}`);
  } catch (cause) {
    if (cause instanceof CodedError) throw cause;
    if (systemCode(cause) !== 'ENOENT') throw failed(command, messageOf(cause), cause);
    const hint = installHint === '' ? '' : `. ${installHint.trim()}`;
    throw failed(command, `it is not installed here${hint}`, cause);
  } finally {
    clearTimeout(late);
  }
  if (answer.length > ANSWER_BYTES_MAX) throw failed(command, 'its answer is too long');
  return answer;
}

/** Errors never quote the answer: it may hold a token. */
function credentialIn(answer: string, { command, apiVersion }: ExecPlugin): ExecCredential {
  let parsed: unknown;
  try {
    parsed = JSON.parse(answer);
  } catch {
    throw failed(command, 'its answer is not JSON');
  }
  const { kind, apiVersion: version, status } = (parsed ?? {}) as Record<string, unknown>;
  if (kind !== 'ExecCredential') throw failed(command, 'its answer is not an ExecCredential');
  if (version !== apiVersion) {
    const said = typeof version === 'string' ? `"${version.slice(0, 80)}"` : 'nothing';
    const text = `the kubeconfig asks for the apiVersion "${apiVersion}", and it answered with ${said}`;
    throw failed(command, text);
  }
  if (typeof status !== 'object' || status === null)
    throw failed(command, 'its answer has no status');
  const textOf = (key: string): string | undefined => {
    const value = lookup(status as Record<string, unknown>, key) ?? '';
    if (typeof value !== 'string') throw failed(command, `its ${key} is not a string`);
    return value === '' ? undefined : value;
  };
  const token = textOf('token');
  const clientCertificateData = textOf('clientCertificateData');
  const clientKeyData = textOf('clientKeyData');
  if ((clientCertificateData === undefined) !== (clientKeyData === undefined)) {
    throw failed(command, 'its answer has a certificate or a key, but not both');
  }
  if (token === undefined && clientKeyData === undefined) {
    throw failed(command, 'its answer has neither a token nor a certificate');
  }
  const expires = textOf('expirationTimestamp');
  const expiresMs = expires === undefined ? undefined : Date.parse(expires);
  if (Number.isNaN(expiresMs)) throw failed(command, 'its expirationTimestamp is not a time');
  return { token, clientCertificateData, clientKeyData, expiresMs };
}

function failed(command: string, why: string, cause?: unknown): CodedError {
  const text = `the exec plugin "${command}" of the kubeconfig gave no credentials: ${redactAndCut(why)}`;
  return new CodedError('KUBE_UNAVAILABLE', text, { retry: 'backoff', cause });
}
