import type { RequestListener } from 'node:http';
import {
  type BoundAddress,
  type HttpListener,
  listenHttp,
  SELF_SIGNED,
  ServedCertificate,
} from '../../observability/index.ts';
import {
  Access,
  type BackupFiles,
  browseReviews,
  clusterReviews,
  type MessageSource,
  PageHandler,
  PageView,
  STATUS_PAGE_AUDIENCE,
  type TrustSource,
} from '../index.ts';
import type { Common } from './common.ts';
import { FollowedVolumes } from './page-volumes.ts';

/** Data from buckets and repositories. The page disposes its sources. */
export interface PageSources {
  readonly messages: MessageSource;
  readonly signatures: TrustSource & AsyncDisposable;
  /** Files in backups, for users with the right to browse them. */
  readonly files: (BackupFiles & AsyncDisposable) | undefined;
}

export interface StatusPageOptions extends Pick<Common, 'client' | 'logger' | 'namespace'> {
  /** For addresses other than loopback. Without it the page generates its own. */
  readonly certificate?: ServedCertificate | undefined;
  /** A visitor's token must have one of these audiences. If empty, those of the API server. */
  readonly audiences?: readonly string[];
  readonly sources: PageSources;
}

/** Serves the status page until it is disposed. Throws `ADDRESS_UNUSABLE`. */
export async function openStatusPage(
  address: string,
  { client, logger, namespace, sources, ...options }: StatusPageOptions,
): Promise<HttpListener> {
  const { clock } = client;
  const { audiences = [STATUS_PAGE_AUDIENCE] } = options;
  const { messages } = sources;
  const volumes = new FollowedVolumes(client, namespace);
  const access = new Access({
    reviews: clusterReviews(client, namespace, audiences),
    logger,
    clock,
  });
  await using ends = new AsyncDisposableStack();
  const signatures = ends.use(sources.signatures);
  const view = new PageView({ client, logger, namespace, volumes, signatures });
  const files = sources.files && {
    source: ends.use(sources.files),
    access: new Access({ reviews: browseReviews(client, namespace, audiences), logger, clock }),
  };
  // Tokens from other machines never come over plain HTTP.
  const certificate =
    options.certificate ?? ends.use(await ServedCertificate.open(SELF_SIGNED, { logger, clock }));
  const handlerOf = ({ isLoopback }: BoundAddress): RequestListener => {
    const shown = { view, volumes, messages, access, files };
    return new PageHandler({ ...shown, audiences, logger, clock, isLoopback }).handle;
  };
  const listener = ends.use(await listenHttp(address, 'the status page', handlerOf, certificate));
  const stop = new AbortController();
  const running = view.run(stop.signal);
  const how = listener.isLoopback
    ? 'without a login, since only this machine reaches it'
    : "over TLS, for those who may list Velero's objects";
  logger.info({ address: listener.address, access: how }, 'serving the status page');
  const kept = ends.move();
  return {
    ...listener,
    async [Symbol.asyncDispose]() {
      stop.abort();
      // End all requests before closing the repositories.
      await kept.disposeAsync();
      await running;
    },
  };
}
