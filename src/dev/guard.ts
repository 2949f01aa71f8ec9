import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { randomBytes } from '../base/index.ts';
import { ApiError } from './api-error.ts';
import { PROTOBUF_TYPE } from './protobuf.ts';

/** Paths that say that the server lives, and nothing else. */
const OPEN_PATHS = new Set(['/healthz', '/livez', '/readyz']);
const LOOPBACK_HOSTS = new Set(['127.0.0.1', 'localhost', '[::1]']);
/**
 * What bodies may be. A web page can send the types of forms to any server without asking it first.
 */
const BODY_TYPES = new Set(['application/json', PROTOBUF_TYPE]);
const PATCH_TYPES = new Set([
  'application/json-patch+json',
  'application/merge-patch+json',
  'application/strategic-merge-patch+json',
  'application/apply-patch+yaml',
]);

export function bodyTypeOf({ headers }: IncomingMessage): string {
  const [type = ''] = (headers['content-type'] ?? '').split(';');
  return type.trim().toLowerCase();
}

const digest = (text: string): Buffer => createHash('sha256').update(text).digest();

/**
 * Who may ask the embedded API server. Whoever may creates pods, and pods are processes of the user
 * who runs it: web pages in the user's browser and other users of the machine must stay out.
 */
export class Guard {
  /** For the kubeconfig. */
  readonly token = Buffer.from(randomBytes(32)).toString('base64url');
  readonly #expected = digest(`Bearer ${this.token}`);

  /** Looks at the head only: nothing of a refused body is read. Throws {@link ApiError}. */
  admit(request: IncomingMessage, path: string): void {
    const { host = '', origin, authorization = '' } = request.headers;
    // A page whose own name was made to point to this machine still sends that name.
    if (!LOOPBACK_HOSTS.has(host.replace(/:\d*$/, '').toLowerCase())) {
      throw new ApiError(
        403,
        'Forbidden',
        'this server can only be reached by a name of this machine',
      );
    }
    if (origin !== undefined) {
      throw new ApiError(403, 'Forbidden', 'this server is not for web pages');
    }
    if (OPEN_PATHS.has(path) && request.method === 'GET') return;
    // Digests have one length, so that the time tells neither that nor where they differ.
    if (!timingSafeEqual(digest(authorization), this.#expected)) {
      const text = 'the token is missing or wrong: use the kubeconfig of this run';
      throw new ApiError(401, 'Unauthorized', text);
    }
  }

  /** Throws {@link ApiError} when the body is of a type that this server does not take. */
  admitBody(request: IncomingMessage): void {
    const type = bodyTypeOf(request);
    const known = request.method === 'PATCH' ? PATCH_TYPES : BODY_TYPES;
    if (known.has(type)) return;
    const text = `content type "${type}" is not supported; use one of ${[...known].join(', ')}`;
    throw new ApiError(415, 'UnsupportedMediaType', text);
  }
}
