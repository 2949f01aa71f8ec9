import { z } from 'zod';
import { asError, CodedError, redactAndCut, withRetry } from '../../base/index.ts';
import { describeFailure, parseRetryAfter, strangeAnswer } from '../http/failures.ts';

const MANAGEMENT_API = '2023-05-01';
/** Limit of a try, with its answer. Our choice: the service answers within a second. */
const TIMEOUT_MS = 30_000;
/** Our choice: two keys have some 500 bytes. */
const ANSWER_BYTES_MAX = 64 << 10;
/** Our choice, as for other requests when the service is not busy. */
const RETRIES = { attemptsMax: 8, delayMsMax: 10_000 };
const FIRST_DELAY_MS = 100;

const keysSchema = z.object({
  keys: z.array(z.object({ value: z.string().min(1), permissions: z.string() })),
});

export interface KeyRequest {
  /** `https://management.azure.com/subscriptions/…/storageAccounts/name`. */
  readonly accountUrl: string;
  readonly token: string;
  /** Limit of a try. */
  readonly timeoutMs?: number;
  readonly attemptsMax?: number;
}

/**
 * The first key of the account with write permission. Retries if the service is busy or
 * unreachable. Throws `STORAGE_DENIED`, `STORAGE_THROTTLED`, `STORAGE_UNREACHABLE`,
 * `STORAGE_FAILED`.
 */
export async function listAccountKey(request: KeyRequest): Promise<string> {
  const { attemptsMax = RETRIES.attemptsMax } = request;
  const keys = await withRetry(() => askForKeys(request), {
    budgetOf: () => ({ ...RETRIES, attemptsMax }),
    firstDelayMs: FIRST_DELAY_MS,
  });
  const key = keys.find(({ permissions }) => permissions.toLowerCase() === 'full');
  if (!key) throw new CodedError('STORAGE_DENIED', 'the storage account has no key that may write');
  return key.value;
}

const OPERATION = 'listing the keys of the storage account';

async function askForKeys({
  accountUrl,
  token,
  timeoutMs = TIMEOUT_MS,
}: KeyRequest): Promise<z.infer<typeof keysSchema>['keys']> {
  const where = new URL(accountUrl).origin;
  let answer: Response;
  let text: string;
  try {
    answer = await fetch(`${accountUrl}/listKeys?api-version=${MANAGEMENT_API}`, {
      method: 'POST',
      redirect: 'manual',
      headers: { authorization: `Bearer ${token}` },
      signal: AbortSignal.timeout(timeoutMs),
    });
    text = await readStart(answer);
  } catch (error) {
    throw describeFailure({
      storage: where,
      operation: OPERATION,
      status: undefined,
      code: '',
      cause: asError(error),
    });
  }
  const { status } = answer;
  if (status === 401 || status === 403) {
    const hint =
      'grant the identity Microsoft.Storage/storageAccounts/listkeys/action, or set useAad=true';
    const told = `${OPERATION} at ${where} failed: ${status} ${redactAndCut(text)}`;
    throw new CodedError('STORAGE_DENIED', `${told}; ${hint}`);
  }
  if (!answer.ok) {
    throw describeFailure({
      storage: where,
      operation: OPERATION,
      status,
      code: '',
      retryAfterMs: parseRetryAfter(answer.headers.get('retry-after') ?? undefined),
      cause: new Error(redactAndCut(text)),
    });
  }
  return parseKeys(text, where);
}

function parseKeys(text: string, where: string): z.infer<typeof keysSchema>['keys'] {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    json = undefined;
  }
  const parsed = keysSchema.safeParse(json);
  if (parsed.success) return parsed.data.keys;
  throw strangeAnswer(where, OPERATION, 'it is not a list of keys');
}

/** The start of the body: a proxy's page may have any length. */
async function readStart(answer: Response): Promise<string> {
  const pieces: Uint8Array[] = [];
  let lengthBytes = 0;
  for await (const piece of (answer.body ?? []) as AsyncIterable<Uint8Array>) {
    pieces.push(piece);
    lengthBytes += piece.length;
    if (lengthBytes > ANSWER_BYTES_MAX) break;
  }
  return Buffer.concat(pieces).toString('utf8', 0, ANSWER_BYTES_MAX);
}
