// Which of the recent requests are shown.

/** @typedef {{model: string, status: string, text: string}} Filter "" is any; a status is "2", "4", "5", or "mended" */

/**
 * @param {RecentRequest} request
 * @param {Filter} filter
 */
export function isWanted(request, { model, status, text }) {
  if (model !== "" && request.model !== model) return false;
  if (status === "mended" && !request.mended?.length) return false;
  if (/^\d$/.test(status) && !String(request.status).startsWith(status)) return false;
  return text === "" || wordsOf(request).includes(text.toLowerCase());
}

/** @param {RecentRequest} request */
function wordsOf(request) {
  const { method, path, model, principal, request_id: id, upstream, error, mended = [], failed = [] } = request;
  return [method, path, request.status, model, principal, id, upstream, error, ...mended, ...failed]
    .join(" ")
    .toLowerCase();
}
