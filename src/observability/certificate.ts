import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createSecureContext } from 'node:tls';
import {
  type Clock,
  CodedError,
  codeOf,
  type Logger,
  makeCertificate,
  messageOf,
  redactAndCut,
} from '../base/index.ts';

/** PEM. */
export interface CertificatePair {
  readonly cert: string;
  readonly key: string;
}

/** The value of `--tls-certificate` that generates a certificate instead of reading one. */
export const SELF_SIGNED = 'self-signed';
/** The kubelet updates a mounted Secret within a minute or two, so a shorter time gains little. */
const EVERY_MS = 10_000;
const DAY_MS = 86_400_000;
/** A self-signed certificate is valid for a year. */
const REPLACED_AFTER_MS = 300 * DAY_MS;

export interface CertificateOptions {
  readonly logger: Logger;
  readonly clock: Clock;
  /** Interval for reading the files again. */
  readonly everyMs?: number;
}

/**
 * The certificate of the servers in this process. If the files of a mounted Secret change, new
 * connections get the new certificate. If the new files are unusable, the last good certificate
 * stays, and the log says why.
 */
export class ServedCertificate implements Disposable {
  readonly #source: string;
  readonly #options: CertificateOptions;
  readonly #followers = new Set<(pair: CertificatePair) => void>();
  readonly #timer: NodeJS.Timeout;
  #pair: CertificatePair;
  #madeMs: number;
  /** The last problem in the log. Each is logged once. */
  #logged: string | undefined;
  #isDisposed = false;

  /**
   * Reads `tls.crt` and `tls.key` in the directory `source`, or generates a certificate for {@link
   * SELF_SIGNED}. Throws `CERTIFICATE_UNUSABLE`.
   */
  static async open(source: string, options: CertificateOptions): Promise<ServedCertificate> {
    const nowMs = millisecondsOf(options.clock);
    const isMade = source === SELF_SIGNED;
    const pair = isMade ? selfSigned(nowMs) : await readPair(source);
    const { fingerprint256, validTo } = new X509Certificate(pair.cert);
    options.logger.info(
      { certificate: source, fingerprint: fingerprint256, validTo },
      'serving with this certificate',
    );
    return new ServedCertificate(source, options, pair, nowMs);
  }

  private constructor(
    source: string,
    options: CertificateOptions,
    pair: CertificatePair,
    nowMs: number,
  ) {
    this.#source = source;
    this.#options = options;
    this.#pair = pair;
    this.#madeMs = nowMs;
    this.#complainOfDates();
    this.#timer = setInterval(() => void this.#follow(), options.everyMs ?? EVERY_MS).unref();
  }

  get pair(): CertificatePair {
    return this.#pair;
  }

  /** Calls `follower` with each new certificate, until this is disposed of. */
  onChange(follower: (pair: CertificatePair) => void): void {
    this.#followers.add(follower);
  }

  [Symbol.dispose](): void {
    this.#isDisposed = true;
    clearInterval(this.#timer);
    this.#followers.clear();
  }

  /** Never rejects. */
  async #follow(): Promise<void> {
    try {
      const nowMs = millisecondsOf(this.#options.clock);
      let next = this.#pair;
      if (this.#source !== SELF_SIGNED) next = await readPair(this.#source);
      else if (nowMs - this.#madeMs > REPLACED_AFTER_MS) {
        next = selfSigned(nowMs);
      }
      if (next.cert !== this.#pair.cert || next.key !== this.#pair.key) this.#replace(next, nowMs);
      else if (this.#logged?.startsWith('cannot') === true) this.#logged = undefined;
      this.#complainOfDates();
    } catch (error) {
      this.#complain(`${messageOf(error)} The last good certificate stays in use.`);
    }
  }

  /** Throws `CERTIFICATE_UNUSABLE` if a server refuses it. All servers keep the old one then. */
  #replace(next: CertificatePair, nowMs: number): void {
    if (this.#isDisposed) return;
    const taken: ((pair: CertificatePair) => void)[] = [];
    try {
      for (const follower of this.#followers) {
        taken.push(follower);
        follower(next);
      }
    } catch (cause) {
      for (const follower of taken) follower(this.#pair);
      throw unusable(this.#source, reasonOf(cause), cause);
    }
    this.#pair = next;
    this.#madeMs = nowMs;
    this.#logged = undefined;
    const { fingerprint256, validTo } = new X509Certificate(next.cert);
    this.#options.logger.info(
      { certificate: this.#source, fingerprint: fingerprint256, validTo },
      'serving with a new certificate',
    );
  }

  /**
   * An expired certificate is still served. Ending this process would stop backups too, and clients
   * refuse the certificate themselves.
   */
  #complainOfDates(): void {
    const nowMs = millisecondsOf(this.#options.clock);
    const { validFromDate, validToDate } = new X509Certificate(this.#pair.cert);
    const isEarly = nowMs < validFromDate.getTime();
    if (!isEarly && nowMs <= validToDate.getTime()) return;
    const when = isEarly
      ? `is not valid before ${validFromDate.toISOString()}`
      : `expired at ${validToDate.toISOString()}`;
    this.#complain(
      `The certificate in ${this.#source} ${when}, so clients refuse it. Renew the Secret.`,
    );
  }

  #complain(problem: string): void {
    // A read may still run while this is disposed of.
    if (this.#isDisposed || this.#logged === problem) return;
    this.#logged = problem;
    this.#options.logger.error({ certificate: this.#source }, problem);
  }
}

/** The certificate of `--tls-certificate`; undefined without it. Throws `CERTIFICATE_UNUSABLE`. */
export async function certificateOf(
  source: string | undefined,
  { logger, clock }: CertificateOptions,
): Promise<ServedCertificate | undefined> {
  return source === undefined ? undefined : ServedCertificate.open(source, { logger, clock });
}

const millisecondsOf = (clock: Clock): number => Number(clock.nowNs() / 1_000_000n);

function selfSigned(nowMs: number): CertificatePair {
  const { certificate, key } = makeCertificate(nowMs, 'longshore');
  return { cert: certificate, key };
}

const unusable = (source: string, reason: string, cause?: unknown): CodedError =>
  new CodedError(
    'CERTIFICATE_UNUSABLE',
    `cannot use the certificate in ${source}: ${reason}. Check the Secret that is mounted there.`,
    { cause },
  );

/** The code of OpenSSL, such as `ERR_SSL_EE_KEY_TOO_SMALL`. Its words may quote the input. */
const reasonOf = (cause: unknown): string => `TLS refuses it (${codeOf(cause) ?? 'no reason'})`;

async function readPair(directory: string): Promise<CertificatePair> {
  const textOf = async (name: string): Promise<string> => {
    try {
      return await readFile(join(directory, name), 'utf8');
    } catch (cause) {
      throw unusable(directory, redactAndCut(messageOf(cause)), cause);
    }
  };
  let [cert, key] = [await textOf('tls.crt'), await textOf('tls.key')];
  // The kubelet may have exchanged both files between the two reads.
  for (let now = await textOf('tls.crt'); now !== cert; now = await textOf('tls.crt')) {
    [cert, key] = [now, await textOf('tls.key')];
  }
  let certificate: X509Certificate;
  let privateKey: KeyObject;
  // OpenSSL's words may quote the input, and a key must not get into a log.
  try {
    certificate = new X509Certificate(cert);
  } catch {
    throw unusable(directory, 'tls.crt is not a certificate in PEM form');
  }
  try {
    privateKey = createPrivateKey(key);
  } catch {
    throw unusable(directory, 'tls.key is not an unencrypted private key in PEM form');
  }
  if (!certificate.checkPrivateKey(privateKey)) {
    throw unusable(directory, 'tls.key is not the key of tls.crt');
  }
  try {
    // OpenSSL refuses, for example, a key that is too short.
    createSecureContext({ cert, key });
  } catch (cause) {
    throw unusable(directory, reasonOf(cause), cause);
  }
  return { cert, key };
}
