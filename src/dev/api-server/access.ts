import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { randomBytes } from '../../base/index.ts';
import { ApiError } from './api-error.ts';
import { PROTOBUF_TYPE } from './protobuf.ts';

/** Health paths, which need no token. */
const OPEN_PATHS = new Set(['/healthz', '/livez', '/readyz']);
const LOOPBACK_HOSTS = new Set(['127.0.0.1', 'localhost', '[::1]']);
/** Allowed content types. Web pages can send those of forms without a preflight request. */
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
 * Access control of the embedded API server. A client can create pods, and pods are processes of
 * the user who runs the server. So web pages and other users of the machine must stay out.
 */
export class Guard {
  /** For the kubeconfig. */
  readonly token = Buffer.from(randomBytes(32)).toString('base64url');
  readonly #expected = digest(`Bearer ${this.token}`);

  /** Checks the head only, and reads no body. Throws {@link ApiError}. */
  admit(request: IncomingMessage, path: string): void {
    const { host = '', origin, authorization = '' } = request.headers;
    // A page whose name was redirected to this machine still sends that name (DNS rebinding).
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
    // Digests have one length, so the time of the comparison reveals nothing.
    if (!timingSafeEqual(digest(authorization), this.#expected)) {
      const text = 'the token is missing or wrong: use the kubeconfig of this run';
      throw new ApiError(401, 'Unauthorized', text);
    }
  }

  /** Throws {@link ApiError} if the server does not accept the content type. */
  admitBody(request: IncomingMessage): void {
    const type = bodyTypeOf(request);
    const known = request.method === 'PATCH' ? PATCH_TYPES : BODY_TYPES;
    if (known.has(type)) return;
    const text = `content type "${type}" is not supported; use one of ${[...known].join(', ')}`;
    throw new ApiError(415, 'UnsupportedMediaType', text);
  }
}
