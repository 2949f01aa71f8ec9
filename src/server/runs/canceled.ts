import type { KubeObject } from '../../kube/index.ts';
import { CANCEL_ANNOTATION } from '../../plugin/index.ts';

/**
 * Whether somebody wants a Backup or Restore to end: `longshore backup cancel`,
 * `longshore restore cancel`.
 */
export const isCanceled = ({ metadata }: Pick<KubeObject, 'metadata'>): boolean =>
  (metadata.annotations?.[CANCEL_ANNOTATION] ?? '') !== '';

/** The `failureReason` of one that was canceled. */
export const CANCELED = 'canceled by user';
