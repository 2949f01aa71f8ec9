import { plainDocument } from './layout.ts';

export interface Answer {
  readonly status: number;
  /** HTML of a page. */
  readonly body: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Sent instead of a page. */
  readonly download?: {
    readonly bytes: AsyncIterable<Uint8Array>;
    /** Called once, after success or failure. */
    readonly end: () => void;
  };
}

export const ok = (body: string): Answer => ({ status: 200, body });
export const plain = (status: number, title: string, text: string): Answer => ({
  status,
  body: plainDocument(title, text),
});
export const notFound = (text: string): Answer => plain(404, 'Not found', text);
export const redirect = (): Answer => ({ status: 303, body: '' });

export const away = (what: string, why: string, retrySeconds = 5): Answer => ({
  ...plain(503, 'Not now', `${what} cannot be shown now: ${why}.`),
  headers: { 'retry-after': String(retrySeconds) },
});
