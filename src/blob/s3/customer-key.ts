import { readFileSync } from 'node:fs';
import { CodedError, messageOf } from '../../base/index.ts';
import { digestOf } from '../http/transfer.ts';
import type { S3Location } from '../location.ts';

/** Sent with every request for an object. */
export interface CustomerKey {
  readonly SSECustomerAlgorithm: string;
  /** Base64 of 32 bytes. */
  readonly SSECustomerKey: string;
  readonly SSECustomerKeyMD5: string;
}

/**
 * SSE-C: the service encrypts with a key that it forgets, so every request sends it. Undefined if
 * the location names none. Throws `BAD_LOCATION`.
 */
export function loadCustomerKey({
  sseCustomerKeyFile: file,
}: Pick<S3Location, 'sseCustomerKeyFile'>): CustomerKey | undefined {
  if (file === undefined) return undefined;
  let bytes: Buffer;
  try {
    bytes = readFileSync(file);
  } catch (cause) {
    const text = `cannot read sseCustomerKeyFile: ${messageOf(cause)}`;
    throw new CodedError('BAD_LOCATION', text, { cause });
  }
  const key = bytes.length === 32 ? bytes : Buffer.from(bytes.toString('latin1').trim(), 'base64');
  if (key.length !== 32) {
    throw new CodedError(
      'BAD_LOCATION',
      `sseCustomerKeyFile ${file} does not hold a key of 32 bytes`,
    );
  }
  return {
    SSECustomerAlgorithm: 'AES256',
    SSECustomerKey: key.toString('base64'),
    SSECustomerKeyMD5: digestOf('md5', [key]).toString('base64'),
  };
}
