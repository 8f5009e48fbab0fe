# Reads runs.csv and deltas.csv of a study and draws its main figures with R, independently of Broadleaf.
# Usage: Rscript report.R [DIRECTORY OF THE STUDY] [FOLDER FOR FIGURES]
# Needs ggplot2. Prints the coefficients of lm (microseconds; main effects, then pairs) and the components of prcomp.
suppressPackageStartupMessages(library(ggplot2))

arguments <- commandArgs(trailingOnly = TRUE)
directory <- if (length(arguments) >= 1) arguments[1] else "."
folder <- if (length(arguments) >= 2) arguments[2] else file.path(directory, "report", "r")
dir.create(folder, recursive = TRUE, showWarnings = FALSE)

read <- function(name) {
  path <- file.path(directory, name)
  first <- readLines(path, n = 1)
  sep <- if (nchar(gsub("[^;]", "", first)) > nchar(gsub("[^,]", "", first))) ";" else ","
  read.csv(path, sep = sep, check.names = FALSE, stringsAsFactors = FALSE)
}

runs <- read("runs.csv")
runs <- runs[runs$status == "ok", ]
last_column <- which(names(runs) == "flags")
factors <- names(runs)[(last_column + 1):ncol(runs)]
factors <- factors[sapply(factors, function(name) length(unique(runs[[name]])) > 1)]
quoted <- paste0("`", factors, "`")
for (name in factors) if (!is.numeric(runs[[name]])) runs[[name]] <- factor(runs[[name]])

save_plot <- function(name, plot, width = 8, height = 6) {
  path <- file.path(folder, paste0(name, ".png"))
  ggsave(path, plot, width = width, height = height, dpi = 120)
  cat("wrote", path, "\n")
}
look <- theme_bw(base_size = 12) + theme(plot.title.position = "plot")

# Time since the first run and time of day, as covariates.
runs$elapsed <- (runs$started_unix - min(runs$started_unix)) / max(1, diff(range(runs$started_unix)))
hour <- 2 * pi * (runs$started_unix %% 86400) / 86400
runs$day_cos <- cos(hour)
runs$day_sin <- sin(hour)
covariates <- "elapsed"
if (diff(range(runs$started_unix)) > 86400) covariates <- c(covariates, "day_cos", "day_sin")

main <- lm(reformulate(c(quoted, covariates), "time_per_task_us"), data = runs)
cat("\nlm, main effects and time (microseconds per task)\n")
print(coef(summary(main)), digits = 10)
pairs_formula <- reformulate(c(paste0("(", paste(quoted, collapse = " + "), ")^2"), covariates), "time_per_task_us")
pairs <- lm(pairs_formula, data = runs)
cat("\nlm, with all pairs: R squared", summary(pairs)$r.squared, "\n")
strongest <- sort(coef(pairs)[grepl(":", names(coef(pairs)))])
print(head(strongest, 10), digits = 10)
print(tail(strongest, 10), digits = 10)

for (model in list(list("main", main), list("pairs", pairs))) {
  shown <- data.frame(actual = runs$time_per_task_us, predicted = fitted(model[[2]]))
  save_plot(paste0("model_", model[[1]]), ggplot(shown, aes(actual, predicted)) +
    geom_abline(linetype = "dashed") + geom_point(alpha = 0.4, colour = "#0072b2") + look +
    labs(x = "measured time per task (us)", y = "predicted time per task (us)",
         title = sprintf("lm (%s): R squared %.3f", model[[1]], summary(model[[2]])$r.squared)))
}

if (file.exists(file.path(directory, "deltas.csv"))) {
  deltas <- read("deltas.csv")
  means <- aggregate(delta_us ~ treatment, deltas, mean)
  means$treatment <- reorder(means$treatment, -means$delta_us)
  cat("\nmean deltas (microseconds per task)\n")
  print(means[order(means$delta_us), ], digits = 8, row.names = FALSE)
  save_plot("means", ggplot(means, aes(delta_us, treatment, fill = delta_us < 0)) + geom_col() + look +
    scale_fill_manual(values = c("TRUE" = "#2166ac", "FALSE" = "#b2182b"), guide = "none") +
    labs(x = "mean change of time per task (us)", y = NULL, title = "Mean deltas"))
  top <- as.character(means$treatment[which.min(means$delta_us)])
  own <- deltas[deltas$treatment == top, ]
  save_plot("before_after", ggplot(own, aes(before_us, after_us)) +
    geom_abline(linetype = "dashed") + geom_point(alpha = 0.5) + look +
    labs(x = "time per task before (us)", y = "time per task after (us)", title = paste("Before and after", top)))
  save_plot("colour_strip", ggplot(deltas, aes(before_us, treatment, colour = log2(after_us / before_us))) +
    geom_jitter(height = 0.25, width = 0) + scale_x_continuous(trans = "log10") + look +
    scale_colour_gradient2(low = "#2166ac", mid = "grey90", high = "#b2182b", name = "log2 ratio") +
    labs(x = "time per task before (us)", y = NULL, title = "What each treatment did, by speed"))
}

# A row per complete path, a column per factor: what adding it changed there.
on_path <- runs[!is.na(runs$path_id) & !is.na(runs$path_step), ]
vectors <- list()
for (path in split(on_path, on_path$path_id)) {
  nodes <- lapply(split(path, path$path_step), function(node) list(time = median(node$time_per_task_us), levels = node[1, factors]))
  nodes <- nodes[order(as.numeric(names(nodes)))]
  changes <- setNames(rep(0, length(factors)), factors)
  for (i in seq_along(nodes)[-1]) {
    changed <- factors[unlist(nodes[[i]]$levels) != unlist(nodes[[i - 1]]$levels)]
    if (length(changed) == 1) changes[changed] <- nodes[[i]]$time - nodes[[i - 1]]$time
  }
  vectors[[length(vectors) + 1]] <- changes
}
if (length(vectors) >= 3) {
  components <- prcomp(do.call(rbind, vectors))
  cat("\nprcomp of path vectors: standard deviations\n")
  print(components$sdev, digits = 10)
  scores <- as.data.frame(components$x)
  save_plot("pca", ggplot(scores, aes(PC1, PC2)) + geom_point(alpha = 0.5) + look +
    geom_segment(data = as.data.frame(components$rotation * max(abs(scores$PC1))),
                 aes(x = 0, y = 0, xend = PC1, yend = PC2), colour = "#d55e00") +
    geom_text(data = data.frame(components$rotation * max(abs(scores$PC1)), name = rownames(components$rotation)),
              aes(PC1, PC2, label = name), size = 3, check_overlap = TRUE) + labs(title = "Paths on two components (us)"))
}
